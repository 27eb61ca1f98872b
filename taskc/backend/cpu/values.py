"""The values of expressions on the lanes of a vector: names, arithmetic, reads.

    x[worker] * 2      %a = load <16 x float>, ptr %x.0
                       %b = fmul <16 x float> %a, splat (float 2.0)

A uniform value stays a scalar as long as possible. A conditional operand is evaluated on all lanes, but reads
memory only where its condition holds: under a mask of lanes, or under a scalar guard.

Along a reshaped axis, indices are quotients and remainders of consecutive numbers. A vector then lies in few segments,
each of one quotient, and within a segment an index is lane 0's value plus a constant for each lane:

    b[(first + lane) // 62]      lanes below 62 - first % 62:    b[first // 62]
                                 the others:                     b[first // 62 + 1]

    c[(first + lane) % 62]       lanes below 62 - first % 62:    c[first % 62 + lane]
                                 the others:                     c[first % 62 - 62 + lane]

So such a read takes a load or two for a vector, where a gather takes one for each lane.

A block of more workers than lanes runs as several vectors, one after the other. The code between two barriers is a
group: all vectors run through one group before any begins the next. A value that is bound in one group and used in
another is kept in memory, one copy for each vector, unless it can be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

from taskc.backend.cpu.byte_tables import is_byte_table, looked_up
from taskc.backend.cpu.dots import AVX_LANES, Dots
from taskc.backend.cpu.instructions import SCALAR, Builder, LaneValue, constant, constants
from taskc.backend.cpu.memory import LaneAddress, LaneMemory, Private, PrivateMemory, shared_bytes
from taskc.backend.cpu.native import Elementwise
from taskc.backend.lanes import LaneForm, LaneForms
from taskc.dataclass import dataclass
from taskc.errors import InternalError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.build import add, floor_divide, modulo, multiply
from taskc.ir.nodes import GLOBAL, SHARED, Expression, Statement, Table, Tensor, Variable
from taskc.ir.operations import DOTS
from taskc.ir.rewrite import bound_by, expressions, map_children, statements, tensors_of, walk
from taskc.ir.target import TARGETS
from taskc.ir.types import DType, f32, i32, i64, u8


class BarrierGroups:
    def __init__(self, body: Statement, vectors: int) -> None:
        self._barriers: dict[int, bool] = {}
        self._groups: dict[Variable | Tensor, set[int]] = {}
        self._number = 0
        if vectors > 1 and self.has_barrier(body):  # otherwise all is one group
            self._visit(body)

    def has_barrier(self, statement: Statement) -> bool:
        contains_barrier = self._barriers.get(id(statement))
        if contains_barrier is None:
            contains_barrier = isinstance(statement, ir.Barrier) or any(
                map(self.has_barrier, statements(statement))
            )
            self._barriers[id(statement)] = contains_barrier
        return contains_barrier

    def is_kept(self, item: Variable | Tensor) -> bool:
        """Whether a variable or tensor is used in more than one group."""
        return len(self._groups.get(item, ())) > 1

    def _visit(self, statement: Statement) -> None:
        if not self.has_barrier(statement):
            self._note(statement)
            return
        # A loop comes back: the code before its first barrier and the code after its last one are two groups.
        for expression in expressions(statement):
            self._note(expression)
        self._number += 1
        for below in statements(statement):
            self._visit(below)
            if self.has_barrier(below):
                self._number += 1
        self._number += 1

    def _note(self, node: Statement | Expression) -> None:
        for inner in walk(node):
            for item in _mentioned(inner):
                self._groups.setdefault(item, set()).add(self._number)


def _mentioned(node: Statement | Expression) -> Iterator[Variable | Tensor]:
    if isinstance(node, Variable):
        yield node
    yield from tensors_of(node)
    yield from bound_by(node)


def is_pure(expression: Expression) -> bool:
    """Whether the expression has the same value whenever it is computed."""
    return not any(isinstance(node, ir.Read) for node in walk(expression))


Math = Callable[[Elementwise, str, tuple[LaneValue, ...]], LaneValue]


def _is_dot(expression: Expression) -> TypeGuard[ir.Binary]:
    is_binary = isinstance(expression, ir.Binary) and expression.operator == "dot_bytes"
    return is_binary and expression.dtype is i32


def _has_short_bytes(expression: Expression) -> bool:
    """Whether a mask leaves no byte above 127, so that two products of such bytes and signed ones fit 16 bits."""
    match expression:
        case ir.Binary(operator="&", right=ir.Constant(value=mask)):
            return not int(mask) & 0x80808080
    return False


def lanes_of(workers: int, most: int) -> int:
    """Lanes of a vector: a power of two, no more than the workers need; SCALAR for one worker."""
    if workers == 1:
        return SCALAR
    lanes = 2
    while lanes < min(workers, most):
        lanes *= 2
    return lanes


class LaneValues:
    """Computes a kernel's expressions at the builder's position in the code."""

    def __init__(self, kernel: ir.Kernel, most_lanes: int, register: str, math: Math) -> None:
        self.kernel = kernel
        self.lanes = lanes_of(kernel.workers, most_lanes)
        self.math = math
        self.builder = Builder(register, 32 * most_lanes)
        self.elementwise = Elementwise(self.builder)
        self.memory = LaneMemory(self.builder, self.elementwise, self.lanes)
        has_avx = most_lanes >= AVX_LANES
        self.dots = Dots(self.builder, self.elementwise, self.memory, has_avx=has_avx)
        self.has_dots = DOTS["vpdpbusd.u8"] in TARGETS[kernel.target].matrix
        self.privates = PrivateMemory(self.memory, shared_bytes(kernel))
        self.forms = LaneForms(kernel, self.lanes or 1)
        self.vectors = -(-kernel.workers // (self.lanes or 1))
        self.groups = BarrierGroups(kernel.body, self.vectors)
        self.vector = constant(0, i64)  # number of the vector that runs
        self.exists: LaneValue | None = None  # mask of its lanes that are workers; None if all are
        self.mask: LaneValue | None = None  # mask of the active ones; None if all are
        self.guard: LaneValue | None = None  # a uniform condition under which memory may be read
        self.bases: dict[Tensor, str] = {}
        self.stored: dict[Tensor, Private] = {}
        self.kept: dict[Variable, Private] = {}
        self.definitions: dict[Variable, Expression] = {}
        self.scopes: list[dict[Variable, LaneValue]] = [{}]
        self.tables: dict[Table, str] = {}

    # Names.

    def bind(self, variable: Variable, value: LaneValue) -> None:
        self.scopes[-1][variable] = value

    def _find(self, variable: Variable) -> LaneValue:
        for scope in reversed(self.scopes):
            if variable in scope:
                return scope[variable]
        if variable in self.kept:
            value = self.privates.load(self.kept[variable], self.vector, constant(0, i64))
        elif variable is self.kernel.worker:
            lanes = constant(self.lanes or 1, i64)
            first = self.elementwise.binary("*", self.vector, lanes)
            value = self.elementwise.convert(first, variable.dtype)
        else:
            value = self.let_value(self.definitions[variable])
        self.bind(variable, value)
        return value

    @contextmanager
    def scoped(self) -> Iterator[None]:
        """A scope for variables: those bound inside end with it."""
        self.scopes.append({})
        yield
        self.scopes.pop()

    @contextmanager
    def nested(self) -> Iterator[None]:
        """A scope for variables and for known instructions."""
        with self.scoped(), self.builder.nested():
            yield

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Code that becomes a function of its own where it can; see `Builder.apart`."""
        bound = [value for scope in self.scopes for value in scope.values()]
        states = [self.vector, self.exists, self.mask, self.guard]
        types = {value.text: value.type for value in (*bound, *states) if value is not None}
        pointers = [line.split()[0] for line in self.builder.allocations]
        types |= dict.fromkeys([*self.bases.values(), *pointers], "ptr")
        stored = self.stored.copy()
        with self.scoped(), self.builder.apart(types):
            yield
        self.stored = stored  # what was allocated inside is the function's

    @contextmanager
    def under(self, guard: LaneValue | None, mask: LaneValue | None) -> Iterator[None]:
        before = self.guard, self.mask
        self.guard, self.mask = guard, mask
        yield
        self.guard, self.mask = before

    def both(self, a: LaneValue | None, b: LaneValue) -> LaneValue:
        return b if a is None else self.elementwise.binary("and", a, b)

    # Expressions.

    def _is_scalar(self, expression: Expression) -> bool:
        form = self.forms.form(expression)
        return form.is_uniform or (form.is_known and expression.dtype.is_integer)

    def let_value(self, expression: Expression) -> LaneValue:
        """The value to bind to a variable: lane 0's, if the others follow from it."""
        return self.scalar(expression) if self._is_scalar(expression) else self.spread(expression)

    def spread(self, expression: Expression) -> LaneValue:
        """The value on every lane."""
        if not self.lanes:
            return self.scalar(expression)
        form = self.forms.form(expression)
        if form.is_uniform:
            return self.elementwise.splat(self.scalar(expression), self.lanes)
        if form.offsets is not None and expression.dtype.is_integer:
            return self.elementwise.offset(self.scalar(expression), form.offsets)
        if isinstance(expression, Variable):
            return self.elementwise.splat(self._find(expression), self.lanes)
        return self.elementwise.splat(self._value(expression, self.spread), self.lanes)

    def scalar(self, expression: Expression) -> LaneValue:
        """The value on lane 0."""
        if isinstance(expression, Variable):
            return self._find(expression)
        return self._value(expression, self.scalar)

    def _value(self, expression: Expression, part: Callable[[Expression], LaneValue]) -> LaneValue:
        elementwise = self.elementwise
        match expression:
            case ir.Constant(value=value, dtype=dtype):
                return constant(value, dtype)
            case ir.Binary(operator="and" | "or"):
                return self._lazy(expression, part)
            case ir.Binary(operator=operator, left=left, right=right):
                if operator in MATH_FUNCTIONS:
                    return self.math(elementwise, operator, (part(left), part(right)))
                if operator == "+" and _is_dot(left):
                    left, right = right, left
                if operator == "+" and _is_dot(right):
                    return self._add_dot(part(left), right, part)
                return elementwise.binary(operator, part(left), part(right))
            case ir.Unary(operator=operator, operand=operand):
                if operator in MATH_FUNCTIONS:
                    return self.math(elementwise, operator, (part(operand),))
                return elementwise.unary(operator, part(operand))
            case ir.Fused(left=left, right=right, addend=addend):
                return elementwise.fused(part(left), part(right), part(addend))
            case ir.Cast(operand=operand, dtype=dtype):
                if self.lanes and (rounded := self._rounded(operand, dtype)) is not None:
                    return elementwise.rounded(*map(part, rounded), dtype=dtype)
                return elementwise.convert(part(operand), dtype)
            case ir.Bitcast(operand=operand, dtype=dtype):
                return elementwise.bitcast(part(operand), dtype)
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                return self._select(condition, then, otherwise, part)
            case ir.Read(tensor=tensor, indices=indices):
                return self._read(tensor, indices)
            case ir.Lookup(table=table, index=index):
                place = self.place(self._table(table), (index,), self.tables[table])
                return self.memory.load(place, self.guard, self.mask if self.lanes else None)
            case Variable() | ir.Inline() | ir.Address():
                raise InternalError(f"no code for {type(expression).__name__}")
            case _:
                return assert_never(expression)

    def _rounded(self, value: Expression, dtype: DType) -> tuple[Expression, ...] | None:
        """x and, if there is one, z, of a value that is to be a short integer: round(x), or round(x) + z for a short
        integer z."""
        if dtype.is_float or dtype.bits not in (8, 16) or value.dtype is not f32:
            return None
        if isinstance(value, Variable):
            value = self.definitions.get(value, value)
        match value:
            case ir.Unary(operator="round", operand=x):
                return (x,)
            case ir.Binary(
                operator="+", left=ir.Unary(operator="round", operand=x), right=ir.Cast(operand=z)
            ) if z.dtype.is_integer and z.dtype.bits <= 16:
                return x, z
        return None

    def _add_dot(
        self, total: LaneValue, dot: ir.Binary, part: Callable[[Expression], LaneValue]
    ) -> LaneValue:
        signed, unsigned = part(dot.left), part(dot.right)
        if self.has_dots:
            return self.dots.product(DOTS["vpdpbusd.u8"], total, unsigned, signed)
        codes = dot.right
        if isinstance(codes, Variable):
            codes = self.definitions.get(codes, codes)
        if _has_short_bytes(codes) and self.dots.has_pairs(unsigned):
            product = self.dots.product_of_pairs(unsigned, signed)
        else:
            product = self.elementwise.binary("dot_bytes", signed, unsigned)
        return self.elementwise.binary("+", total, product)

    def _lazy(self, node: ir.Binary, part: Callable[[Expression], LaneValue]) -> LaneValue:
        left = part(node.left)
        holds = left if node.operator == "and" else self.elementwise.unary("not", left)
        with self._if(holds, node.right):
            right = part(node.right)
        return self.elementwise.binary(node.operator, left, right)

    def _select(
        self,
        condition: Expression,
        then: Expression,
        otherwise: Expression,
        part: Callable[[Expression], LaneValue],
    ) -> LaneValue:
        elementwise = self.elementwise
        is_uniform = self.forms.is_uniform(condition)
        holds = self.scalar(condition) if is_uniform else part(condition)
        if holds.number is not None and not holds.lanes:
            return part(then if holds.number else otherwise)
        with self._if(holds, then):
            first = part(then)
        with self._if(elementwise.unary("not", holds), otherwise):
            second = part(otherwise)
        if first.lanes != second.lanes or holds.lanes:
            first, second = (elementwise.splat(value, self.lanes) for value in (first, second))
        return elementwise.select(holds, first, second)

    @contextmanager
    def _if(self, holds: LaneValue, arm: Expression) -> Iterator[None]:
        """The scope of a select's arm: it is evaluated everywhere, but loads only where its condition holds."""
        if is_pure(arm) and not any(isinstance(node, ir.Lookup) for node in walk(arm)):
            yield
            return
        with self.nested():
            if holds.lanes:
                with self.under(self.guard, self.both(self.mask, holds)):
                    yield
            else:
                with self.under(self.both(self.guard, holds), self.mask):
                    yield

    # Memory.

    def _read(self, tensor: Tensor, indices: tuple[Expression, ...]) -> LaneValue:
        if tensor in self.stored:
            copy = self.copy_of(tensor)
            return self.privates.load(self.stored[tensor], copy, self.private_index(indices))
        place = self.place(tensor, indices)
        if place.offsets is None:
            segments = segments_of(indices[0], self) if tensor.swizzle is None else None
            if segments is not None:
                return self._read_segments(tensor, segments)
            if self.builder.permutes_bytes and is_byte_table(tensor):
                places = self.elementwise.convert(place.index, u8).text
                looked = looked_up(self.builder, place.base, places, self.lanes)
                return LaneValue(looked, tensor.dtype, self.lanes)
        return self.memory.load(place, self.guard, self.active())

    def _read_segments(self, tensor: Tensor, segments: list[Segment]) -> LaneValue:
        elementwise, active, result = self.elementwise, self.active(), None
        for segment in segments:
            mask = self.both(active, segment.lanes)
            loaded = self.memory.load(self.place(tensor, (segment.index,)), self.guard, mask)
            loaded = elementwise.splat(loaded, self.lanes)
            result = loaded if result is None else elementwise.select(segment.lanes, loaded, result)
        assert result is not None
        return result

    def active(self) -> LaneValue | None:
        """Mask of the active lanes; None for all."""
        if self.exists is None:
            return self.mask
        return self.both(self.mask, self.exists)

    def private_index(self, indices: tuple[Expression, ...]) -> LaneValue:
        if not indices:
            return constant(0, i64)
        (index,) = indices
        return self.scalar(index) if self.forms.is_uniform(index) else self.spread(index)

    def _base(self, tensor: Tensor) -> str:
        if tensor.scope == GLOBAL:
            return self.bases[tensor]
        if tensor.scope != SHARED or tensor.offset is None:
            raise InternalError(f"{tensor.name} has no place in memory")
        if tensor.offset == 0:
            return "%scratch"
        return self.builder.pure(f"getelementptr i8, ptr %scratch, i64 {tensor.offset}")

    def place(
        self, tensor: Tensor, indices: tuple[Expression, ...], base: str | None = None
    ) -> LaneAddress:
        base = base or self._base(tensor)
        index: Expression = indices[0] if indices else ir.constant(0)
        if tensor.swizzle is not None:
            index = _swizzled(tensor, index)
        form = self.forms.form(index)
        if form.offsets is not None:
            return LaneAddress(tensor, base, self.scalar(index), form.offsets)
        return LaneAddress(tensor, base, self.spread(index), None)

    def _table(self, table: Table) -> Tensor:
        self.tables.setdefault(table, f"@table{len(self.tables)}")
        return Tensor(table.name, i64, (int(table.values.size),), GLOBAL)

    def copy_of(self, tensor: Tensor) -> LaneValue:
        return self.vector if self.is_kept(tensor) else constant(0, i64)

    def is_kept(self, item: Variable | Tensor) -> bool:
        """Whether each vector needs its own copy, which lives across a barrier."""
        return self.groups.is_kept(item)


def _swizzled(tensor: Tensor, offset: Expression) -> Expression:
    swizzle = tensor.swizzle
    assert swizzle is not None

    def number(value: int) -> ir.Constant:
        return ir.Constant(value, offset.dtype)

    moved = ir.Binary(">>", offset, number(swizzle.shift))
    bits = ir.Binary("&", moved, number(2**swizzle.bits - 1))
    return ir.Binary("^", offset, ir.Binary("<<", bits, number(swizzle.base)))


# --- Segments -------------------------------------------------------------------------------

_MOST_SEGMENTS = 4  # of a vector: with more, a gather is as good


@dataclass(frozen=True, slots=True)
class Segment:
    """The mask of lanes with one quotient, and their index, of a known form."""

    lanes: LaneValue
    index: Expression


def segments_of(index: Expression, values: LaneValues) -> list[Segment] | None:
    """The segments of an index; None if there are too many, or its form is unknown even within a segment."""
    if not values.lanes or index.dtype is not i64 or not is_pure(index):
        return None
    index = _without_names(index, values)
    digits = list(_digits(index, values))
    if not digits:
        return None
    number, length = digits[0].left, min(map(_divisor, digits))
    count = (values.lanes + length - 2) // length + 1
    if count > _MOST_SEGMENTS or any(_divisor(digit) % length for digit in digits):
        return None
    if any(constant_difference(digit.left, number) != 0 for digit in digits[1:]):
        return None
    quotient, remainder = Variable("quotient", i64), Variable("remainder", i64)
    known = {id(digit): _digit(digit, length, quotient, remainder) for digit in digits}
    values.forms.learn(quotient, values.forms.uniform())
    values.forms.learn(remainder, LaneForm(tuple(range(values.lanes))))
    if not values.forms.form(_replaced(index, known)).is_known:
        return None
    return [_segment(values, index, digits, length, place) for place in range(count)]


def _segment(
    values: LaneValues, index: Expression, digits: list[ir.Binary], length: int, place: int
) -> Segment:
    """Segment number `place` of a vector, with new variables for its quotient and for lane 0's remainder."""
    elementwise, lanes = values.elementwise, values.lanes
    first = values.scalar(digits[0].left)
    quotient_of_first, modulo_length = (
        elementwise.binary(sign, first, length) for sign in ("//", "%")
    )
    quotient, remainder = Variable("quotient", i64), Variable("remainder", i64)
    values.forms.learn(quotient, values.forms.uniform())
    values.forms.learn(remainder, LaneForm(tuple(range(lanes))))
    values.bind(quotient, elementwise.binary("+", quotient_of_first, place))
    begin = elementwise.binary("-", modulo_length, place * length)
    values.bind(remainder, begin)
    lane = constants(range(lanes), i64)
    low = elementwise.splat(elementwise.unary("-", begin), lanes)
    high = elementwise.binary("+", low, length)
    inside = elementwise.binary("<", lane, high)
    if place:
        inside = elementwise.binary("and", elementwise.binary(">=", lane, low), inside)
    known = {id(digit): _digit(digit, length, quotient, remainder) for digit in digits}
    return Segment(inside, _replaced(index, known))


def _digit(digit: ir.Binary, length: int, quotient: Variable, remainder: Variable) -> Expression:
    """A quotient or remainder of quotient * length + remainder by a multiple of the length."""
    times = _divisor(digit) // length
    if digit.operator == "//":
        return floor_divide(quotient, times)
    return add(multiply(modulo(quotient, times), length), remainder) if times > 1 else remainder


def _divisor(digit: ir.Binary) -> int:
    assert isinstance(digit.right, ir.Constant)
    return int(digit.right.value)


def _digits(index: Expression, values: LaneValues) -> Iterator[ir.Binary]:
    """The outermost quotients and remainders of numbers that are consecutive across lanes."""
    for node in walk(index):
        if (
            isinstance(node, ir.Binary)
            and node.operator in ("//", "%")
            and isinstance(node.right, ir.Constant)
            and int(node.right.value) > 0
            and values.forms.form(node.left).is_contiguous
            and not values.forms.form(node).is_known
        ):
            yield node


def _replaced(index: Expression, known: dict[int, Expression]) -> Expression:
    def visit(node: Expression) -> Expression:
        return known[id(node)] if id(node) in known else map_children(node, visit)

    return visit(index)


def _without_names(index: Expression, values: LaneValues) -> Expression:
    """The index with variables of unknown form replaced by their definitions."""

    def visit(node: Expression) -> Expression:
        if isinstance(node, Variable):
            value = values.definitions.get(node)
            unknown = value is not None and not values.forms.form(node).is_known
            return visit(value) if value is not None and unknown and is_pure(value) else node
        return map_children(node, visit)

    return visit(index)
