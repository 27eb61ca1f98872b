"""Statements in CUDA C++, each with its source location in Python.

    if worker + s * 32 < n:           ->     if (worker + s * 32 < n) {
        y[worker + s * 32] = 0.0                 y[worker + s * 32] = 0.0f;
                                             }

A worker whose assertion fails ends, unless others may wait for it: at mbarriers, at named barriers, at those of a
cluster or of the grid, or in operations of a warp. Then it goes on.

In a vector loop memory is accessed as vectors, and the computation is a loop over the lanes:

    for s: i32 in vector(4):                    f32 x_lanes[4];
        y[base + s] = x[base + s] * 2.0   ->    tc::load_vector(x_lanes, &x[base]);
                                                f32 y_lanes[4];
                                                #pragma unroll
                                                for (i32 s = 0; s < 4; ++s)
                                                    y_lanes[s] = x_lanes[s] * 2.0f;
                                                tc::store_vector(y, base, y_lanes);

All lanes agree on conditions, so a conditional read is loaded under the first lane's condition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import field

from taskc.analysis.facts import Facts
from taskc.analysis.touches import exit_condition, reads
from taskc.backend.cuda.expressions import UNARY, ExpressionWriter, Line
from taskc.backend.cuda.matrices import word_of_halves
from taskc.backend.cuda.operations import OperationWriter, atomic_text
from taskc.backend.cuda.prelude import STRUCTURES, Prelude, UniqueNames
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, InternalError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable
from taskc.ir.code_size import CodeSizes
from taskc.ir.extents import size_in_bytes, size_in_elements
from taskc.ir.fragments import alignment
from taskc.ir.linear import Affine
from taskc.ir.nodes import (
    BARRIER,
    GLOBAL,
    SHARED,
    Constant,
    Expression,
    Statement,
    Tensor,
    Variable,
)
from taskc.ir.operations import NAMED_BARRIERS, OPERATIONS
from taskc.ir.rewrite import map_children, substitute, walk
from taskc.ir.target import WARPGROUP
from taskc.ir.types import DType, boolean, f64


def print_text(node: ir.Print, expressions: ExpressionWriter) -> str:
    first, *pieces = node.text.replace("%", "%%").split("{}")
    shown = [_shown(value, expressions) for value in node.values]
    text = first + "".join(
        [form + piece for (form, _), piece in zip(shown, pieces, strict=True)] + ["\n"]
    )
    return f"printf({', '.join([json.dumps(text, ensure_ascii=False), *(v for _, v in shown)])});"


def _shown(value: Expression, expressions: ExpressionWriter) -> tuple[str, str]:
    """A value's printf format, and the argument to pass."""
    dtype = value.dtype
    if dtype is boolean:
        return "%s", f'({expressions(value)}) ? "True" : "False"'
    if dtype.is_integer:
        sign = "d" if dtype.is_signed else "u"
        return ("%ll" if dtype.bits == 64 else "%") + sign, expressions(value)
    if dtype is f64:
        return "%.17g", expressions(value)
    return "%.9g", expressions(ir.Cast(value, f64))


@dataclass(slots=True, eq=False)
class LaneWindow:
    """Consecutive elements that the lanes access.

    place       index of the first lane's element
    share       how many consecutive lanes access the same element
    conditions  of each of its reads, for the first lane; () is always
    """

    tensor: Tensor
    offset: Affine
    place: Expression
    share: int = 1
    conditions: list[tuple[Expression, ...]] = field(default_factory=list)
    is_loaded: bool = False
    is_stored: bool = False

    @property
    def condition(self) -> Expression | None:
        """The condition under which it is loaded; None means always."""
        whole: Expression | None = None
        for parts in self.conditions:
            if not parts:
                return None
            one = parts[0]
            for part in parts[1:]:
                one = ir.Binary("and", one, part)
            whole = one if whole is None else ir.Binary("or", whole, one)
        return whole


class LaneWindows:
    """The windows of a loop's body, in order."""

    def __init__(self, loop: ir.For, scope: SymbolTable) -> None:
        assert isinstance(loop.start, Constant)
        self.scope = scope
        self.first: dict[Variable, Expression] = {loop.variable: loop.start}
        assert isinstance(loop.stop, Constant)
        self.lanes = (int(loop.stop.value) - int(loop.start.value)) // loop.step
        self.last: dict[Variable, Expression] = {
            loop.variable: Constant(int(loop.stop.value) - loop.step, loop.variable.dtype)
        }
        self.found: list[LaneWindow] = []
        self.of: dict[int, LaneWindow] = {}  # by the identity of a Read or a Store
        body = loop.body
        for statement in body.statements if isinstance(body, ir.Sequence) else (body,):
            match statement:
                case ir.Let(variable=variable, value=value):
                    self._reads(value)
                    self.first[variable] = substitute(value, self.first)
                    self.last[variable] = substitute(value, self.last)
                case ir.Store(tensor=tensor, indices=indices, value=value):
                    self._reads(value)
                    window = self._window(tensor, indices)
                    if window is not None:
                        self.of[id(statement)] = window
                        window.is_stored = True
                case _:
                    raise InternalError(f"{type(statement).__name__} in a vector loop")

    def _reads(self, value: Expression) -> None:
        always: tuple[Expression, ...] = ()
        for read, conditions in reads(value, always, self._under):
            window = self._window(read.tensor, read.indices) if isinstance(read, ir.Read) else None
            if window is not None:
                self.of[id(read)] = window
                if window.is_loaded or not window.is_stored:
                    window.is_loaded = True
                    window.conditions.append(conditions)

    def _under(
        self, conditions: tuple[Expression, ...], condition: Expression, holds: bool
    ) -> tuple[Expression, ...]:
        first = substitute(condition, self.first)
        return *conditions, first if holds else ir.Unary("not", first)

    def _window(self, tensor: Tensor, indices: tuple[Expression, ...]) -> LaneWindow | None:
        """The window of an access; None where all lanes access one element, or registers."""
        if tensor.scope not in (GLOBAL, SHARED) or not indices:
            return None
        (index,) = indices
        place = _without_zeros(substitute(index, self.first))
        offset = self.scope.form(place)
        reach = self.scope.form(substitute(index, self.last)) - offset
        if reach == Affine(0, {}, 0):
            return None
        share = self.lanes // (int(reach.constant) + 1) if reach.is_constant else 1
        for window in self.found:
            if window.tensor is tensor and window.offset == offset:
                return window
        window = LaneWindow(tensor, offset, place, share)
        self.found.append(window)
        return window


def _without_zeros(node: Expression) -> Expression:
    """Simplify x + 0 to x."""
    node = map_children(node, _without_zeros)
    match node:
        case ir.Binary(operator="+", left=left, right=Constant(value=0)):
            return left
        case ir.Binary(operator="+", left=Constant(value=0), right=right):
            return right
    return node


def shared_memory(kernel: ir.Kernel) -> tuple[dict[Tensor, int], int]:
    """The offset of each tensor of a block, and their total size in bytes."""
    allocated = [
        node.tensor
        for node in walk(kernel.body)
        if isinstance(node, ir.Allocate) and node.tensor.scope in (SHARED, BARRIER)
    ]
    places = {tensor: tensor.offset for tensor in allocated if tensor.offset is not None}
    end = max((at + size_in_bytes(t) for t, at in places.items()), default=0)
    for tensor in dict.fromkeys(allocated):
        if tensor not in places:
            step = 8 if tensor.scope == BARRIER else max(128, alignment(tensor))
            places[tensor] = -(-end // step) * step
            end = places[tensor] + size_in_bytes(tensor)
    return places, end


_LARGEST_SIZE = 1 << 40  # no dimension of any tensor has more elements
_LANE_SUFFIX = "lanes"
_LONG = 32  # statements
_OF_WARPGROUPS = (-1, WARPGROUP)


class StatementWriter:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.facts = _facts_of(kernel)
        self.names = UniqueNames()
        self.prelude = Prelude()
        self.expressions = ExpressionWriter(
            self.names, self.prelude, self.facts.scope, kernel.target
        )
        self.operations = OperationWriter(kernel, self.expressions)
        self.lines: list[Line] = []
        self.indent = 0
        self.loc = NOWHERE
        self.sizes = CodeSizes()
        self.asserts: list[ir.Assert] = []
        self.places, self.shared = shared_memory(kernel)
        self.role: ir.Role | None = None
        # The numbers of the named barriers of roles, by first worker and size, and of warpgroups.
        self.barriers: dict[tuple[int, int], range] = {}
        self.waits = _waits_for_others(kernel)
        self.meets_in_grid = any(
            isinstance(node, ir.Barrier) and node.scope == "grid" for node in walk(kernel.body)
        )

    # Lines.

    def line(self, text: str, loc: Location | None = None) -> None:
        self.lines.append(Line(self.indent, text, self.loc if loc is None else loc))

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """Lines written inside are in braces after `head`, indented."""
        self.line(f"{head} {{" if head else "{")
        self.indent += 1
        before = self.loc
        yield
        self.loc = before
        self.indent -= 1
        self.line("}")

    def type(self, dtype: DType) -> str:
        if dtype in STRUCTURES:
            self.prelude.use(dtype.name)
        return dtype.name

    def bind(self, variable: Variable, value: str) -> None:
        self.line(f"const {variable.dtype} {self.names[variable]} = {value};")

    # Statements.

    def statements(self, node: Statement) -> None:
        """A statement at the beginning of a C++ block."""
        parts = node.statements if isinstance(node, ir.Sequence) else (node,)
        packed = self.operations.packed
        known = dict(packed.names)
        is_stored = False
        for at, statement in enumerate(parts):
            if is_stored:  # together with the previous half
                is_stored = False
                continue
            for line in packed.before(parts[at:]):
                self.line(line)
            word = word_of_halves(parts[at : at + 2], self.expressions.scope)
            if word is not None:
                is_stored = True
                assert isinstance(statement, ir.Store)
                place = self.expressions.element(statement.tensor, statement.indices)
                self.line(
                    f"{self.expressions.use('store_word')}(&{place}, {self.expressions(word)});"
                )
            elif isinstance(statement, ir.Sequence):
                with self.braces(""):
                    self.statements(statement)
            else:
                self.loc = statement.loc if statement.loc.line else self.loc
                self.statement(statement)
        packed.names = known

    def statement(self, node: Statement) -> None:
        match node:
            case ir.Let(variable=variable, value=value):
                self.facts.enter(node)
                self.type(variable.dtype)
                self.bind(variable, self.expressions(value))
            case ir.Store(tensor=tensor, indices=indices, value=value):
                text = self.expressions(value)
                self.line(f"{self.expressions.element(tensor, indices)} = {text};")
            case ir.Allocate(tensor=tensor, fill=fill):
                self._allocate(tensor, fill)
            case ir.Peer():
                self._peer(node)
            case ir.If():
                self._if(node)
            case ir.While(condition=condition, body=body):
                self.facts.enter(node)
                watched = self.operations.watched("the end of a loop", "0u", node.loc)
                with self.braces(f"while ({self.expressions(condition)})"):
                    self.statements(body)
                    for number in watched:
                        self.line(f"tc::spins({number}, 0);")
            case ir.For(kind="vector"):
                self._vector(node)
            case ir.For():
                self._for(node)
            case ir.Barrier():
                self._barrier(node)
            case ir.Roles():
                self._roles(node)
            case ir.Do():
                for text in self.operations.statements(node):
                    self.line(text)
            case ir.Atomic():
                if node.result is not None:
                    self.type(node.result.dtype)
                self.line(atomic_text(node, self.expressions))
            case ir.Print():
                self.line(print_text(node, self.expressions))
            case ir.Assert(condition=condition):
                self.asserts.append(node)
                failed = self.expressions.use("assertion_failed")
                with self.braces(f"if (!{self.expressions(condition, UNARY)})"):
                    self.line(f"{failed}(status, {len(self.asserts)});")
                    if not self.waits:
                        self.line("return;")
            case ir.Breakpoint():
                pass
            case (
                ir.Sequence() | ir.Grid() | ir.Pipeline() | ir.Each() | ir.Move() | ir.Mma() | ir.Reduce()
                | ir.Scan() | ir.RingStep()
            ):  # fmt: skip
                raise InternalError(f"no CUDA code for {type(node).__name__}")
            case _:
                assert_never(node)

    def _if(self, node: ir.If) -> None:
        with self.braces(f"if ({self.expressions(node.condition)})"):
            self.statements(node.then)
        if node.otherwise is not None:
            with self.braces("else"):
                self.statements(node.otherwise)

    def _for(self, node: ir.For) -> None:
        stop = node.stop
        if not isinstance(stop, (ir.Constant, Variable)):  # its operands may change in the loop
            end = Variable(f"{node.variable.name}_end", stop.dtype)
            self.bind(end, self.expressions(stop))
            stop = end
        self._loop_head(node)
        name, step, dtype = self.names[node.variable], node.step, node.variable.dtype
        compare = "<" if step > 0 else ">"
        advance = (
            f"++{name}" if step == 1 else f"{name} += {step}" if step > 0 else f"{name} -= {-step}"
        )
        start, last = self.expressions(node.start), self.expressions(stop)
        head = f"for ({dtype} {name} = {start}; {name} {compare} {last}; {advance})"
        if not self._stays_within(node):
            # The number after the last one may wrap, and then lie before the end again.
            ends = (last, name) if step > 0 else (name, last)
            bits = f"u{dtype.bits}"  # unsigned, which may wrap in C++
            left = f"({bits})({ends[0]}) - ({bits})({ends[1]})"
            sign = "+" if step > 0 else "-"
            advance = f"{name} = ({dtype})(({bits}){name} {sign} {abs(step)})"
            more = self.names[Variable(f"{node.variable.name}_more", dtype)]
            head = (
                f"for ({dtype} {name} = {start}, {more} = {name} {compare} {last}; {more};"
                f" {more} = {left} > {abs(step)}, {advance})"
            )
        self.facts.enter(node)
        with self.braces(head):
            goes_on = exit_condition(node)
            if goes_on is not None:
                self.line(f"if (!{self.expressions(goes_on, UNARY)}) break;")
            self.statements(node.body)

    def _stays_within(self, node: ir.For) -> bool:
        """Whether the number one step past a loop's last one still fits its type."""
        step, dtype = node.step, node.variable.dtype
        low, high = self.facts.interval(node.stop)
        if step > 0:
            return step == 1 or (high is not None and high + step - 1 <= dtype.maximum)
        return step == -1 or (low is not None and low + step + 1 >= dtype.minimum)

    def _loop_head(self, node: ir.For) -> None:
        if node.kind == "unroll":
            self.line("#pragma unroll")
        elif self._is_long(node.body):
            # Unrolling has been decided already; copies by the compiler would only take registers, and room in the
            # instruction cache.
            self.line("#pragma unroll 1")

    def _is_long(self, body: Statement) -> bool:
        """Whether a loop's overhead is small compared with its body."""
        size = self.sizes.of(body)
        if size is None or size >= _LONG:
            return True
        return any(isinstance(inner, (ir.Barrier, ir.Do)) for inner in walk(body))

    # Memory.

    def _allocate(self, tensor: Tensor, fill: ir.Constant | None) -> None:
        name, dtype = self.names[tensor], self.type(tensor.dtype)
        value = None if fill is None else self.expressions(fill)
        if tensor.scope in (SHARED, BARRIER):
            place = self.places[tensor]
            offset = f" + {place}" if place else ""
            self.line(f"{dtype}* const {name} = ({dtype}*)(shared_memory{offset});")
        elif not tensor.shape:
            self.line(f"{dtype} {name}{'' if value is None else f' = {value}'};")
        else:
            self.line(f"{dtype} {name}[{max(size_in_elements(tensor), 1)}];")
            if value is not None:
                self.line(f"{self.expressions.use('fill')}({name}, {value});")

    def _peer(self, node: ir.Peer) -> None:
        rank = self.expressions(node.rank)
        name, of = self.names[node.tensor], self.names[node.of]
        if node.of.scope == BARRIER:
            self.line(f"const u32 {name} = (u32)({rank});")  # the rank of the block that owns them
            self.operations.peers[node.tensor] = node.of, name
            return
        dtype = self.type(node.of.dtype)
        self.line(f"{dtype}* const {name} = {self.expressions.use('peer')}({of}, (u32)({rank}));")

    def _vector(self, loop: ir.For) -> None:
        self.facts.enter(loop)
        body = loop.body.statements if isinstance(loop.body, ir.Sequence) else (loop.body,)
        for statement in body:
            if isinstance(statement, ir.Let):
                self.facts.enter(statement)
        windows = LaneWindows(loop, self.facts.scope)
        lanes = _trips(loop)
        arrays: dict[int, str] = {}
        with self.braces("") if windows.found else nullcontext():
            for window in windows.found:
                tensor = window.tensor
                array = self.names.fresh(f"{tensor.name}_{_LANE_SUFFIX}")
                arrays[id(window)] = array
                self.line(f"{self.type(tensor.dtype)} {array}[{lanes // window.share}];")
                if window.is_loaded:
                    load = self.expressions.use("load_vector")
                    place = self.expressions.address(ir.Address(tensor, (window.place,)))
                    condition = window.condition
                    guard = "" if condition is None else f"if ({self.expressions(condition)}) "
                    self.line(f"{guard}{load}({array}, {place});")
            lane = self.names[loop.variable]
            outside = self.expressions.replaced

            def replaced(node: ir.Read) -> str | None:
                window = windows.of.get(id(node))
                if window is None:
                    return outside(node)
                place = lane if window.share == 1 else f"{lane} / {window.share}"
                return f"{arrays[id(window)]}[{place}]"

            self.line("#pragma unroll")
            self.expressions.replaced = replaced
            with self.braces(f"for ({loop.variable.dtype} {lane} = 0; {lane} < {lanes}; ++{lane})"):
                for statement in body:
                    self.loc = statement.loc if statement.loc.line else self.loc
                    stored = windows.of.get(id(statement))
                    if stored is not None:
                        assert isinstance(statement, ir.Store)
                        text = self.expressions(statement.value)
                        self.line(f"{arrays[id(stored)]}[{lane}] = {text};")
                    else:
                        self.statement(statement)
            self.expressions.replaced = outside
            for window in windows.found:
                if window.is_stored:
                    store = self.expressions.use("store_vector")
                    tensor = window.tensor
                    offset = self.expressions.offset(tensor, (window.place,))
                    self.line(f"{store}({self.names[tensor]}, {offset}, {arrays[id(window)]});")

    # Barriers and roles.

    def _barrier(self, node: ir.Barrier) -> None:
        use = self.expressions.use
        role = self.role
        if node.scope == "grid":
            watched = self.operations.watched("the blocks of the grid", "0u", node.loc)
            self.line(f"{use('barrier_grid')}({', '.join(['arrivals', *watched])});")
            return
        about = f"  // {node.orders}" if node.orders else ""
        if node.scope == "warp" or (
            node.scope == "role" and role is not None and role.workers <= 32
        ):
            self.line(f"{use('barrier_warp')}();{about}")
        elif node.scope == "role" and role is not None:
            number = self._number((role.first, role.workers), 1)
            self.line(f"{use('barrier_named')}<{number}, {role.workers}>();{about}")
        elif node.scope == "warpgroup":
            threads = self.kernel.workers + self.kernel.helpers
            number = self._number(_OF_WARPGROUPS, threads // WARPGROUP)
            group = f"{self.names[self.kernel.worker]} / {WARPGROUP}"
            self.line(f"{use('barrier_warpgroup')}({number} + {group});{about}")
        else:
            self.line(f"{use('barrier_block')}();{about}")

    def _number(self, whose: tuple[int, int], count: int) -> int:
        """The first of `count` consecutive barrier numbers that neither the author nor another owner uses."""
        if whose not in self.barriers:
            taken = {n for numbers in self.barriers.values() for n in numbers}
            for node in walk(self.kernel.body):
                if isinstance(node, ir.Do) and node.operation in NAMED_BARRIERS:
                    named = node.operands[0]
                    if isinstance(named, ir.Constant):
                        taken.add(int(named.value))
                    else:  # a warpgroup's barrier: they are numbered from 1
                        threads = self.kernel.workers + self.kernel.helpers
                        taken.update(range(1, threads // WARPGROUP + 1))
            free = [range(n, n + count) for n in range(1, 17 - count)]
            found = next((span for span in free if taken.isdisjoint(span)), None)
            if found is None:
                raise InternalError("more barriers are needed than there are numbers for them")
            self.barriers[whose] = found
        return self.barriers[whose][0]

    def _roles(self, node: ir.Roles) -> None:
        """Branch by the number of the warp; the last role takes the remaining warps."""
        roles = sorted(node.roles, key=lambda role: role.first)
        threads = self.kernel.workers + self.kernel.helpers
        # All lanes take it from the first one, so that the assembler knows that they branch together.
        warp = self.names.fresh("warp")
        first = self.expressions.use("of_first_lane")
        self.line(f"const i32 {warp} = {first}({self.names[self.kernel.worker]} / 32);")
        ends = 0
        for number, role in enumerate(roles):
            end = role.first + role.workers
            conditions = [f"{warp} >= {role.first // 32}"] if role.first != ends else []
            conditions += [f"{warp} < {end // 32}"] if end != threads or not number else []
            head = f"if ({' && '.join(conditions)})" if conditions else ""
            ends = end
            with self.braces(("else " if number else "") + head if head else "else"):
                self.line(f"// {role.name}")
                self.role = role
                self.statements(role.body)
                self.role = None


def _trips(loop: ir.For) -> int:
    assert isinstance(loop.start, ir.Constant)
    assert isinstance(loop.stop, ir.Constant)
    if loop.start.value != 0 or loop.step != 1:
        raise InternalError("a vector loop counts from 0 by 1")
    return int(loop.stop.value)


def _waits_for_others(kernel: ir.Kernel) -> bool:
    """Whether another worker may wait in vain for one that has ended; barriers of the block don't."""
    for node in walk(kernel.body):
        if isinstance(node, ir.Roles):
            return True
        if isinstance(node, ir.Barrier) and node.scope in ("warp", "grid"):
            return True
        if isinstance(node, ir.Do):
            row = OPERATIONS[node.operation]
            if row.participants != "worker" or node.operation.startswith("mbarrier"):
                return True
    return False


def _facts_of(kernel: ir.Kernel) -> Facts:
    facts = Facts.empty(kernel)
    for size in kernel.dimensions:
        facts.scope.bind(size, Affine(0, {}, 0), Affine(_LARGEST_SIZE, {}, _LARGEST_SIZE))
    return facts
