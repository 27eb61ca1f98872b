"""Vectorization of loops into 64- or 128-bit accesses, at stage lean.

for e in unroll(8):                          for o in unroll(2):
    if 8 * p + e < n:                            if 8 * p + 4 * o < n:
        y[8 * p + e] = x[t + e]       ->             for e in vector(4):
                                                         y[8 * p + (4 * o + e)] = x[t + (4 * o + e)]
(n is a multiple of 4, and so is t)

An innermost loop of constant bounds is split by the greatest width, of 16, 8, 4 and 2, such that no
access is wider than the target's, 16 bytes on a GPU, and in every vector of that many iterations

  - each access has a linear offset that is either the same in all iterations or grows by one, from
    a multiple of the width; GLOBAL and SHARED memory starts at multiples of 16 bytes; some access
    grows. A read may grow by one every few iterations, x[(t + e) // 2], from a multiple of the
    resulting width. Its index is rewritten to show that, x[t // 2 + e // 2], and to leave the lane
    out where all read one element. Reads of registers are unrestricted: each has a name of its own;
  - each condition, of an If around the stores, or of a Select in a value or an `and` that decides
    whether memory is read, has one outcome: it is tested for the first iteration, an If outside the
    loop;
  - no iteration reads what another one writes: a tensor that is stored is read at the offset of
    the store only, and two stores to one tensor are a multiple of the width apart.

A loop that isn't split is cut if it multiplies, so that reads become one access (taskc/passes/unroll.py).

The pass comes after flatten: a linear offset determines contiguity, whatever the layout. It
comes before hoist, which splits offsets.

Private scalars that change in straight-line code would order the iterations. They become names first (SSA form):

local value: f32                         let value = x[i] * 2.0
value = x[i] * 2.0               ->      let value_1 = value + 1.0
value = value + 1.0                      y[i] = value_1
y[i] = value
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeGuard

from taskc.analysis.facts import NEGATED, Facts
from taskc.analysis.touches import reads_memory
from taskc.ir import nodes as ir
from taskc.ir.code_size import CodeSizes, trip_count
from taskc.ir.linear import Affine, Opaque
from taskc.ir.nodes import (
    LOCAL,
    Binary,
    Constant,
    Expression,
    Kernel,
    Select,
    Statement,
    Tensor,
    Unary,
    Variable,
)
from taskc.ir.rewrite import (
    map_children,
    map_expressions,
    map_roles,
    map_statements,
    substitute,
    walk,
)
from taskc.ir.target import TARGETS, Target
from taskc.passes.simplify import simplified_expression
from taskc.passes.unroll import in_pieces


def named_scalars(parts: Sequence[Statement]) -> Sequence[Statement]:
    """Statements with such scalars replaced; unchanged if they change in branches or loops.

    The last statement may be an If that reads them.
    """
    scalars = {
        part.tensor
        for part in parts
        if isinstance(part, ir.Allocate) and part.tensor.scope == LOCAL and not part.tensor.shape
    }
    if not scalars or not all(_is_plain(part, scalars, part is parts[-1]) for part in parts):
        return parts
    now: dict[Tensor, Variable] = {}
    unknown: set[Tensor] = set()  # scalars that are read before they have a value

    def renamed(node: Expression) -> Expression:
        if isinstance(node, ir.Read) and node.tensor in scalars:
            if node.tensor in now:
                return now[node.tensor]
            unknown.add(node.tensor)
        return map_children(node, renamed)

    new: list[Statement] = []
    for part in parts:
        match part:
            case ir.Let():
                new.append(replace(part, value=renamed(part.value)))
            case ir.Store(tensor=tensor) if tensor in scalars:
                value = renamed(part.value)
                now[tensor] = Variable(tensor.name, tensor.dtype, loc=part.loc)
                new.append(ir.Let(now[tensor], value, loc=part.loc))
            case ir.Store():
                indices = tuple([renamed(index) for index in part.indices])
                new.append(replace(part, indices=indices, value=renamed(part.value)))
            case ir.Allocate(tensor=tensor, fill=fill) if fill is not None:
                now[tensor] = Variable(tensor.name, tensor.dtype, loc=part.loc)
                new.append(ir.Let(now[tensor], fill, loc=part.loc))
            case ir.If():
                new.append(_everywhere(part, renamed))
            case _:
                pass  # an Allocate without a fill: no value so far
    return parts if unknown else new


def _is_plain(part: Statement, scalars: set[Tensor], is_last: bool) -> bool:
    match part:
        case ir.Let() | ir.Store():
            return True
        case ir.Allocate(tensor=tensor):
            return tensor in scalars
        case ir.If() if is_last:
            return not any(isinstance(n, ir.Store) and n.tensor in scalars for n in walk(part))
    return False


def _everywhere(node: Statement, change: Callable[[Expression], Expression]) -> Statement:
    """A statement with `change` applied to all its expressions, nested statements included."""
    changed = map_expressions(node, change)
    return map_statements(changed, lambda inner: _everywhere(inner, change))


WIDTHS = (16, 8, 4, 2)
_SHARED_BY = (2, 4)  # numbers of iterations that may read one element
_BYTES = 16
_MEMORY = (ir.GLOBAL, ir.SHARED)


def vectorize(kernel: Kernel) -> Kernel:
    """Turn loops into wide accesses, as the head of this file shows."""
    body = _Vectorizer(kernel).visit(kernel.body, Facts.empty(kernel))
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Vectorizer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.target = TARGETS[kernel.target]
        self.sizes = CodeSizes()

    def visit(self, node: Statement, facts: Facts) -> Statement:
        match node:
            case ir.Sequence():
                new = []
                for statement in node.statements:
                    new.append(self.visit(statement, facts))
                    facts = facts.enter(statement) if isinstance(statement, ir.Let) else facts
                if all(a is b for a, b in zip(new, node.statements, strict=True)):
                    return node
                return replace(node, statements=tuple(new))
            case ir.If():
                then = self.visit(node.then, facts.assume(node.condition))
                otherwise = node.otherwise
                if otherwise is not None:
                    otherwise = self.visit(otherwise, facts.assume(node.condition, holds=False))
                if then is node.then and otherwise is node.otherwise:
                    return node
                return replace(node, then=then, otherwise=otherwise)
            case ir.For():
                body = self.visit(node.body, facts.enter(node))
                split = self._loop(node, facts) if body is node.body else replace(node, body=body)
                if isinstance(split, ir.For):
                    return in_pieces(split, facts, self.target, self.sizes, max(WIDTHS))
                return split
            case ir.Roles():
                worker = self.kernel.worker
                return map_roles(
                    node, lambda role: self.visit(role.body, facts.enter_role(role, worker))
                )
        inside = facts.enter(node)
        return map_statements(node, lambda statement: self.visit(statement, inside))

    def _loop(self, loop: ir.For, facts: Facts) -> Statement:
        trips = trip_count(loop)
        if trips is None or loop.step != 1 or loop.kind == "vector":
            return loop
        guards, body = _guards_and_stores(loop.body)
        if body is None:
            return loop
        widest = _widest(loop.body, self.target)
        for width in WIDTHS:
            if trips % width == 0 and width <= widest:
                new = self._split(loop, facts, trips, width, guards, body)
                if new is not None:
                    return new
        return loop

    def _split(
        self,
        loop: ir.For,
        facts: Facts,
        trips: int,
        width: int,
        guards: list[ir.If],
        body: Statement,
    ) -> Statement | None:
        """The loop in vectors of this width, or None if that isn't legal."""
        assert isinstance(loop.start, Constant)
        dtype = loop.variable.dtype
        start = int(loop.start.value)
        lane = loop.variable
        base: Expression = Constant(start, dtype)
        outer = None
        if trips != width:
            outer = ir.For(
                Variable(f"{lane.name}_vector", dtype),
                Constant(0, dtype),
                Constant(trips // width, dtype),
                1,
                loop.body,
                loop.kind,
                loc=loop.loc,
            )
            facts = facts.enter(outer)
            scaled = Binary("*", outer.variable, Constant(width, dtype))
            base = scaled if not start else Binary("+", scaled, base)
        fresh = replace(lane)
        vector = ir.For(
            fresh, Constant(0, dtype), Constant(width, dtype), 1, body, "vector", loc=loop.loc
        )
        facts = facts.enter(vector)
        moved: Expression = fresh
        if trips != width or start:
            moved = Binary("+", base, fresh)
        check = _Check(facts, fresh, width)
        values: dict[Variable, Expression] = {lane: moved}
        conditions = []
        inside = facts
        for guard in guards:
            condition = check.uniform(substitute(guard.condition, values))
            if condition is None:
                return None
            conditions.append((guard, condition))
            inside = inside.assume(condition)
        check.facts = inside
        stores = check.statement(substitute(body, values))
        if stores is None or not check.independent():
            return None
        new: Statement = replace(vector, body=stores)
        for guard, condition in reversed(conditions):
            new = ir.If(condition, new, loc=guard.loc)
        return new if outer is None else replace(outer, body=new)


def _guards_and_stores(body: Statement) -> tuple[list[ir.If], Statement | None]:
    """The Ifs around all stores of a body, and the rest if that consists of Lets and Stores.

    Lets in front of an If are what its condition may name; there they are replaced by their values. Scalars
    that change on the way to the stores become Lets.
    """
    guards: list[ir.If] = []
    lets: list[Statement] = []
    values: dict[Variable, Expression] = {}
    while True:
        parts = body.statements if isinstance(body, ir.Sequence) else (body,)
        named = named_scalars(parts)
        *front, last = named
        if not isinstance(last, ir.If) or last.otherwise is not None:
            break
        for part in front:
            if not isinstance(part, ir.Let):
                return [], None
            values[part.variable] = substitute(part.value, values)
        lets += front
        guards.append(replace(last, condition=substitute(last.condition, values)))
        body = last.then
    plain = all(isinstance(part, (ir.Let, ir.Store)) for part in named)
    if not plain or not isinstance(last, ir.Store):
        return [], None
    is_whole = not lets and named is parts
    return guards, body if is_whole else ir.Sequence((*lets, *named))


def _widest(body: Statement, target: Target) -> int:
    """The number of elements of the widest type accessed in memory that fit one access."""
    sizes = [
        node.tensor.dtype.nbytes
        for node in walk(body)
        if isinstance(node, (ir.Read, ir.Store)) and node.tensor.scope in _MEMORY
    ]
    return target.vector_bytes // max(sizes) if sizes else 0


def _is_lazy(node: Expression) -> TypeGuard[Binary]:
    """Whether it is an `and` or `or` whose left operand decides whether memory is read."""
    if type(node) is not Binary or node.operator not in ("and", "or"):
        return False
    return reads_memory(node.right)


class _Check:
    """Whether `width` iterations of a body are one vector; `lane` is the loop's variable."""

    def __init__(self, facts: Facts, lane: Variable, width: int) -> None:
        self.facts = facts
        self.lane = lane
        self.width = width
        self.stores: list[tuple[ir.Tensor, Affine]] = []
        self.reads: list[tuple[ir.Tensor, Affine]] = []
        self.grows = False
        self.varying = {lane}  # names that may differ between lanes, their definitions, and
        self.values: dict[Variable, Expression] = {}
        self.first: dict[Variable, Expression] = {
            lane: Constant(0, lane.dtype)
        }  # their values in lane 0

    def varies(self, part: Expression | Opaque) -> bool:
        expression = part.expression if isinstance(part, Opaque) else part
        return any(node in self.varying for node in walk(expression) if type(node) is Variable)

    def seen_through(self, expression: Expression) -> Expression:
        """Names replaced by their definitions: a quotient of a varying name may be the same in all lanes."""
        if not any(node in self.values for node in walk(expression) if type(node) is Variable):
            return expression
        return simplified_expression(substitute(expression, self.values), self.facts)

    def statement(self, node: Statement) -> Statement | None:
        """The body with conditions tested for lane 0, or None."""
        parts = node.statements if isinstance(node, ir.Sequence) else (node,)
        new: list[Statement] = []
        for part in parts:
            if isinstance(part, ir.Let):
                value = self.expression(part.value)
                if value is None:
                    return None
                part = part if value is part.value else replace(part, value=value)
                if self.varies(value):
                    self.varying.add(part.variable)
                    self.values[part.variable] = substitute(value, self.values)
                    self.first[part.variable] = substitute(value, self.first)
                self.facts = self.facts.enter(part)
            else:
                assert isinstance(part, ir.Store)
                value = self.expression(part.value)
                if value is None or self._share(part, self.stores) != 1:
                    return None
                part = part if value is part.value else replace(part, value=value)
            new.append(part)
        return replace(node, statements=tuple(new)) if isinstance(node, ir.Sequence) else new[0]

    def _share(self, node: ir.Read | ir.Store, noted: list[tuple[ir.Tensor, Affine]]) -> int | None:
        """The number of neighbouring iterations that access one element; None if the access isn't legal.

        The offset of a legal access is noted, as a form of the lane.
        """
        offset = self.facts.affine(node.indices[0]) if node.indices else Affine(0, {}, 0)
        noted.append((node.tensor, offset))
        is_read = isinstance(node, ir.Read)
        if self.differs(offset):
            return self._uneven_share(node.tensor, node.indices[0]) if is_read else None
        step = offset.coefficient(self.lane)
        if step == 0:
            return self.width
        if is_read and node.tensor.scope == ir.REGISTER:
            return 1
        is_whole = step == 1 and self._is_aligned(
            node.tensor, offset.without(self.lane), self.width
        )
        self.grows |= is_whole and node.tensor.scope in _MEMORY
        return 1 if is_whole else None

    def _uneven_share(self, tensor: ir.Tensor, index: Expression) -> int | None:
        """As `_share`, for a read of one element in a few iterations, and of its neighbour in the next ones."""
        if tensor.scope not in _MEMORY:
            return None
        for share in _SHARED_BY:
            if self.width % share:
                continue
            group, turn = (Variable(name, self.lane.dtype) for name in ("group", "turn"))
            facts = self.facts
            for variable, extent in ((group, self.width // share), (turn, share)):
                start, stop = (Constant(n, variable.dtype) for n in (0, extent))
                facts = facts.enter(ir.For(variable, start, stop, 1, ir.Sequence(())))
            moved = Binary("+", Binary("*", group, Constant(share, group.dtype)), turn)
            form = facts.affine(substitute(substitute(index, self.values), {self.lane: moved}))
            atoms = [it.expression if isinstance(it, Opaque) else it for it in form.terms]
            varying = [n for it in atoms if it is not group for n in walk(it) if n in (group, turn)]
            if form.coefficient(group) != 1 or varying:
                continue
            if self._is_aligned(tensor, form.without(group), self.width // share):
                self.grows = True
                return share
        return None

    def _read(self, node: ir.Read) -> ir.Read | None:
        """The read, whose index shows which lanes share an element; None if it isn't legal."""
        share = self._share(node, self.reads)
        if share is None:
            return None
        varying = [index for index in node.indices if self.varies(index)]
        if share == 1 or node.tensor.scope not in _MEMORY or not varying:
            return node
        (index,) = varying
        shown = simplified_expression(substitute(index, self.first), self.facts)
        if share < self.width:
            group: Expression = Binary("//", self.lane, Constant(share, self.lane.dtype))
            group = group if group.dtype is index.dtype else ir.Cast(group, index.dtype)
            shown = Binary("+", shown, group)
        return replace(node, indices=(shown,))

    def differs(self, form: Affine) -> bool:
        """Whether it differs between lanes by more than a multiple of the lane's number."""
        return any(atom is not self.lane and self.varies(atom) for atom in form.terms)

    def _is_aligned(self, tensor: ir.Tensor, base: Affine, width: int) -> bool:
        modulus, remainder = self.facts.congruence_of(base)
        if modulus % width or remainder % width:
            return False
        if tensor.offset is not None and tensor.offset % (width * tensor.dtype.nbytes):
            return False
        # The XOR must not reach into a vector.
        return tensor.swizzle is None or (1 << tensor.swizzle.base) % width == 0

    def independent(self) -> bool:
        """Whether no iteration accesses an element that another one stores, and some access grows in memory."""
        if not self.grows:
            return False
        for position, (tensor, offset) in enumerate(self.stores):
            for other, read in self.reads:
                if other is tensor and read != offset:
                    return False
            for other, second in self.stores[:position]:
                if other is tensor:
                    distance = second - offset
                    if not distance.is_constant or distance.constant % self.width:
                        return False
        return True

    def expression(self, node: Expression) -> Expression | None:
        """The value with uniform conditions; None if an access or a condition isn't legal."""
        legal = True

        def visit(current: ir.Expression) -> ir.Expression:
            nonlocal legal
            if not legal:
                return current
            if type(current) is Select:
                condition = self.uniform(current.condition)
                if condition is None:
                    legal = False
                    return current
                if condition is not current.condition:
                    current = replace(current, condition=condition)
            elif _is_lazy(current):
                left = self.uniform(current.left)
                if left is None:
                    legal = False
                    return current
                current = current if left is current.left else replace(current, left=left)
            elif type(current) is ir.Read:
                read = self._read(current)
                if read is None:
                    legal = False
                    return current
                current = read
            return map_children(current, visit)

        new = visit(node)
        return new if legal else None

    # Conditions.

    def uniform(self, condition: Expression) -> Expression | None:
        """The condition for lane 0 if all lanes agree with it, else None."""
        for node in walk(condition):
            if isinstance(node, ir.Read) and self._share(node, self.reads) is None:
                return None
        if not self.varies(condition):
            return condition
        if not (self._is_uniform(condition) or self._is_uniform(self.seen_through(condition))):
            return None
        return simplified_expression(substitute(condition, self.first), self.facts)

    def _is_uniform(self, condition: Expression) -> bool:
        match condition:
            case Unary(operator="not"):
                return self._is_uniform(condition.operand)
            case Binary(operator="and" | "or"):
                return self._is_uniform(condition.left) and self._is_uniform(condition.right)
            case Binary() if condition.operator in NEGATED and condition.left.dtype.is_integer:
                return self._is_uniform_comparison(condition)
        return not self.varies(condition)

    def _is_uniform_comparison(self, condition: Binary) -> bool:
        """Whether g + k*lane, compared with 0, is on one side for all lanes."""
        form = self.facts.affine(condition.left) - self.facts.affine(condition.right)
        if self.differs(form):
            return False
        step = form.coefficient(self.lane)
        if step == 0:
            return True
        if abs(step) != 1 or condition.operator in ("==", "!="):
            return False
        # The side changes between -1 and 0 for < and >=, between 0 and 1 for > and <=.
        edge = 0 if condition.operator in ("<", ">=") else 1
        if step < 0:
            form, edge = -form, 1 - edge
        modulus, remainder = self.facts.congruence_of(form.without(self.lane) - edge)
        return modulus % self.width == 0 and remainder % self.width == 0
