"""The paths to the places of a kernel: loops and guards, from the kernel's body down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import count
from typing import TypeAlias

from taskc.analysis.facts import Facts
from taskc.analysis.touches import Loop, Touch, reads_memory, seen_through, visit_touches
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import add
from taskc.ir.linear import Interval, range_of
from taskc.ir.nodes import LOCAL, Expression, Statement, Tensor, Variable
from taskc.ir.operations import written
from taskc.ir.rewrite import all_below, bound_by, statements, walk, walk_statements
from taskc.ir.types import boolean


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition that is true inside, or false if `holds` is False.

    An `asserted` one is the promise of an Assert: nothing is skipped because of it. One `of_sizes` is
    known everywhere, outside of the loops around it too.
    """

    condition: Expression
    holds: bool = True
    asserted: bool = False
    of_sizes: bool = False


Phase: TypeAlias = ir.Each | ir.Move
Frame: TypeAlias = Loop | Guard
Path: TypeAlias = tuple[Frame, ...]


def conjuncts(
    condition: Expression, holds: bool, names: Mapping[Variable, Expression] | None = None
) -> Iterator[tuple[Expression, bool]]:
    """The conditions that all hold, or don't, where this one does; `names` are expanded."""
    yield from _conjuncts(condition, holds, names or {}, set())


def _conjuncts(
    condition: Expression,
    holds: bool,
    names: Mapping[Variable, Expression],
    seen: set[tuple[Variable, bool]],
) -> Iterator[tuple[Expression, bool]]:
    match condition:
        case ir.Unary(operator="not"):
            yield from _conjuncts(condition.operand, not holds, names, seen)
        case ir.Binary(operator="and" | "or") if (condition.operator == "and") == holds:
            yield from _conjuncts(condition.left, holds, names, seen)
            yield from _conjuncts(condition.right, holds, names, seen)
        case Variable() if condition in names:
            if (condition, holds) not in seen:
                seen.add((condition, holds))
                yield from _conjuncts(names[condition], holds, names, seen)
        case _:
            yield condition, holds


# Conditions on memory that may change count until a statement writes that memory: a counter that was tested may be used
# as an index, until it is incremented.


Indices: TypeAlias = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The facts at a point.

    `now` includes conditions on memory that may change: the tensors in `reads`. As soon as one of
    them is written, only `lasting` is still true. `names` are conditions on such memory that would be
    the same if they were asked again. `written` tells what each statement stores to.
    """

    now: Facts
    lasting: Facts
    reads: frozenset[Tensor]
    path: Path
    written: dict[int, frozenset[Tensor]]
    worker: Variable
    names: dict[Variable, Expression] = field(default_factory=dict)

    def enter(self, statement: Statement) -> State:
        lasting = self.lasting.enter(statement)
        now = self.now.enter(statement) if self.reads else lasting
        return replace(self, now=now, lasting=lasting)

    def repeated(self, loop: Statement) -> State:
        return self._after(loop)

    def under(self, loop: Loop) -> State:
        inside = self.assume(loop.condition) if isinstance(loop, ir.While) else self.enter(loop)
        return replace(inside, path=(*inside.path, loop))

    def within(self, role: ir.Role) -> State:
        now, lasting = (facts.enter_role(role, self.worker) for facts in (self.now, self.lasting))
        return replace(self, now=now, lasting=lasting)

    def behind(self, statement: Statement) -> State:
        match statement:
            case ir.Let(variable=variable, value=value):
                state = self.enter(statement)
                if variable.dtype is boolean and _reads(value):
                    return replace(state, names={**self.names, variable: value})
                return state
            case ir.Assert():
                return self.assume(statement.condition)
            case _:
                return self._after(statement)

    def assume(self, condition: Expression, holds: bool = True) -> State:
        """Assume a condition, part by part: one part may stay known when another part's memory changes."""
        state = self
        for part, part_holds in conjuncts(condition, holds):
            state = state._assume(part, part_holds)
            if isinstance(part, Variable) and part in self.names:
                state = state.assume(self.names[part], part_holds)
        return state

    def _assume(self, condition: Expression, holds: bool) -> State:
        reads = self.reads | _reads(condition)
        lasting = self.lasting.assume(condition, holds=holds)
        now = self.now.assume(condition, holds=holds, lasting=False) if reads else lasting
        path = (*self.path, Guard(condition, holds))
        return replace(self, now=now, lasting=lasting, reads=reads, path=path)

    def _after(self, node: Statement) -> State:
        """The state after the statement, which may have run."""
        if not self.reads and not self.names:
            return self
        written = self.written[id(node)]
        names = {v: value for v, value in self.names.items() if _reads(value).isdisjoint(written)}
        if self.reads.isdisjoint(written):
            return replace(self, names=names)
        now, reads, path = self.lasting, frozenset[Tensor](), []
        for frame in self.path:
            read = _reads(frame.condition) if isinstance(frame, Guard) else frozenset[Tensor]()
            if read.isdisjoint(written):
                path.append(frame)
                if isinstance(frame, Guard) and read:
                    now = now.assume(frame.condition, holds=frame.holds, lasting=False)
                    reads |= read
        return replace(self, now=now, reads=reads, path=tuple(path), names=names)


def visit_states(
    kernel: ir.Kernel, facts: Facts, visit: Callable[[Touch[State], Indices], None]
) -> None:
    """Visit every access in program order, with its indices; `facts` are those at the top of the kernel."""

    def visit_touch(touch: Touch[State]) -> None:
        if isinstance(touch.node, ir.Operand):
            for corner in _corners(touch.node):
                visit(touch, corner)
        else:
            visit(touch, touch.node.indices)

    top = State(facts, facts, frozenset(), (), _written(kernel.body), kernel.worker)
    visit_touches(kernel.body, top, visit_touch)


def _corners(operand: ir.Operand) -> tuple[Indices, Indices]:
    """The first element of a product's matrix, and the one in its last row and column."""
    rows, columns = reversed(operand.shape) if operand.transposed else operand.shape
    *leading, row, column = operand.origin
    return operand.origin, (*leading, add(row, rows - 1), add(column, columns - 1))


def _written(body: Statement) -> dict[int, frozenset[Tensor]]:
    """The tensors that each statement stores to, including nested statements."""
    stored_by: dict[int, frozenset[Tensor]] = {}
    for node in [*walk_statements(body)][::-1]:
        nested = (stored_by[id(inner)] for inner in statements(node))
        stored_by[id(node)] = frozenset(written(node)).union(*nested)
    return stored_by


def _reads(condition: Expression) -> frozenset[Tensor]:
    return frozenset(node.tensor for node in walk(condition) if isinstance(node, ir.Read))


# --- Between which numbers an integer variable stays, over the whole run of a kernel ------------
#     s = 128
#     while s > 0:              s is in [0, 128], and in [1, 128] here
#         s //= 2
#
# A cell holds what it was filled with, or what some Store put there. So bounds hold if every stored
# value is within them, as long as the cells that it is computed from are within theirs. Bounds that
# grow are widened to where they can't grow; once they hold, what is stored under them is as good a
# bound, and often a tighter one.


_STEPS = 3  # that bounds may take before they are widened


def cell_ranges(kernel: ir.Kernel) -> dict[Tensor, Interval]:
    """The ranges of the integer variables (LOCAL tensors) that only Stores write to."""
    cells = _cells(kernel)
    if not cells:
        return {}
    lets = {node.variable: node.value for node in all_below(kernel.body, ir.Let)}

    def stored(known: dict[Tensor, Interval]) -> dict[Tensor, Interval]:
        return _stored(kernel, cells, lets, known)

    known = _ascended({}, tuple(cells), stored)
    for cell in known:
        # Each one alone: it may have grown only as long as the others did.
        others = {other: interval for other, interval in known.items() if other is not cell}
        known[cell] = _ascended(others, (cell,), stored)[cell]
    return known


def _ascended(
    known: dict[Tensor, Interval],
    cells: tuple[Tensor, ...],
    stored: Callable[[dict[Tensor, Interval]], dict[Tensor, Interval]],
) -> dict[Tensor, Interval]:
    """Bounds of these cells, ascending from nothing, given those of others."""
    for step in count():
        stored_now = stored(known)
        around = _joined if step < _STEPS else _widened
        wider = known | {
            c: around(known.get(c), stored_now[c], c) for c in cells if c in stored_now
        }
        if wider == known:
            break
        known = wider
    return known | {cell: stored_now[cell] for cell in cells if cell in stored_now}


def _cells(kernel: ir.Kernel) -> dict[Tensor, Interval | None]:
    """The cells, with the values that their Allocates fill them with."""
    cells: dict[Tensor, Interval | None] = {}
    others: set[Tensor] = set()
    for allocate in all_below(kernel.body, ir.Allocate):
        tensor, fill = allocate.tensor, allocate.fill
        if tensor.scope == LOCAL and tensor.dtype.is_integer:
            start = None if fill is None else int(fill.value)
            cells[tensor] = None if start is None else Interval(start, start)
    # Stores are handled one by one, and other statements don't write.
    for kind in (ir.Atomic, ir.Move, ir.Mma, ir.Reduce, ir.Scan, ir.Do) if cells else ():
        for node in all_below(kernel.body, kind):
            others.update(written(node))
    return {cell: start for cell, start in cells.items() if cell not in others}


def _stored(
    kernel: ir.Kernel,
    cells: dict[Tensor, Interval | None],
    lets: dict[Variable, Expression],
    known: dict[Tensor, Interval],
) -> dict[Tensor, Interval]:
    """All values ever in the cells, given the ranges of values read from them."""
    result = {cell: start for cell, start in cells.items() if start is not None}

    def visit(touch: Touch[State], indices: Indices) -> None:
        store = touch.node
        if not isinstance(store, ir.Store) or store.tensor not in cells:
            return
        if not (tensors_read(store.value, lets) & cells.keys()) <= known.keys():
            return  # nothing has been stored to its operands so far
        allowed = range_of(store.tensor.dtype)
        value = touch.known.now.interval(store.value).meet(allowed)
        result[store.tensor] = value.join(result.get(store.tensor, value))

    visit_states(kernel, Facts.empty(kernel, known), visit)
    return result


def tensors_read(node: Expression, lets: dict[Variable, Expression]) -> set[Tensor]:
    """The tensors that an expression reads, in the values of its names too."""
    return {below.tensor for below in seen_through([node], lets) if isinstance(below, ir.Read)}


def _joined(known: Interval | None, stored: Interval, cell: Tensor) -> Interval:
    return stored if known is None else known.join(stored)


def _widened(known: Interval | None, stored: Interval, cell: Tensor) -> Interval:
    """An interval around both; a bound that moved is set to where it can't move again."""
    if known is None:
        return stored
    low, high = _joined(known, stored, cell)
    if low != known.low:
        low = 0 if low is not None and low >= 0 else int(cell.dtype.minimum)
    if high != known.high:
        high = int(cell.dtype.maximum)
    return Interval(low, high)


# --- Every access to a tensor in a kernel, with the loops and the conditions that it is under --
# A path is the tuple of frames from the kernel's body down to the access:
# loops (Grid, For, Pipeline, While, Each, Move) and guards. A guard comes from an If, a Select, the
# right operand of a lazy `and` or `or`, or from the guard of a Move.


READ, WRITE, ATOMIC = "read", "write", "atomic"


@dataclass(frozen=True, slots=True, eq=False)
class GuardedAccess:
    """One access; `order` counts accesses in program order, `phase` is the outermost Each, or the Move."""

    kind: str
    tensor: Tensor
    indices: tuple[Expression, ...]
    path: Path
    phase: Phase | None
    loc: Location
    order: int
    statement: Statement

    @property
    def verb(self) -> str:
        return {READ: "reads", WRITE: "writes", ATOMIC: "updates"}[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class Binder:
    """The binding of a variable: the `position`-th of a loop's variables.

    `axis` counts NumPy axes from the right; axis 0 belongs to the workers. `shared` variables have
    one value for the whole block: nothing above the loop is an Each or a Move.
    """

    loop: Loop
    position: int
    axis: int
    shared: bool


@dataclass(slots=True)
class KernelAccesses:
    """The result of the traversal.

    lets     the value of each
    private  those of them that each worker has for itself
    written  the LOCAL tensors that are stored to inside an Each
    results  the variables bound by atomics and target operations: each worker has its own
    names    the Lets and the loops, in program order
    axes     of a loop, by identity: the NumPy axis of its (first) variable
    roles    of a tensor that a role allocates: that role
    above    of a loop, by identity: the path to it
    homes    the path to each Allocate
    ranges   of the cells whose values have bounds
    """

    kernel: ir.Kernel
    accesses: list[GuardedAccess] = field(default_factory=list)
    whole: list[ir.Mma | ir.Reduce | ir.Scan] = field(default_factory=list)
    binders: dict[Variable, Binder] = field(default_factory=dict)
    lets: dict[Variable, Expression] = field(default_factory=dict)
    private: set[Variable] = field(default_factory=set)
    results: set[Variable] = field(default_factory=set)
    written: set[Tensor] = field(default_factory=set)
    names: list[ir.Let | Loop] = field(default_factory=list)
    axes: dict[int, int] = field(default_factory=dict)
    roles: dict[Tensor, ir.Role] = field(default_factory=dict)
    above: dict[int, Path] = field(default_factory=dict)
    homes: dict[Tensor, Path] = field(default_factory=dict)
    ranges: dict[Tensor, Interval] = field(default_factory=dict)
    grid: ir.Grid | None = None

    def axis(self, loop: Loop) -> int:
        return self.axes[id(loop)]

    def facts(self, path: Path) -> Facts:
        """The facts at the end of a path."""
        facts = Facts.empty(self.kernel, self.ranges)
        loops = {id(frame) for frame in path}
        for name in self.names:
            if isinstance(name, ir.Let) or id(name) in loops:
                facts = facts.enter(name)
        for frame in path:
            if isinstance(frame, Guard):
                facts = facts.assume(frame.condition, holds=frame.holds)
        return facts

    def conditions(self) -> dict[Variable, Expression]:
        """The Lets of conditions."""
        return {name: value for name, value in self.lets.items() if name.dtype is boolean}

    def on(self, tensor: Tensor) -> list[GuardedAccess]:
        return [access for access in self.accesses if access.tensor is tensor]


def collect(kernel: ir.Kernel) -> KernelAccesses:
    collected = KernelAccesses(kernel, ranges=cell_ranges(kernel))
    accesses = collected.accesses

    def visit(touch: Touch[_Site]) -> None:
        node, site = touch.node, touch.known
        if isinstance(node, ir.Operand):
            return  # of a product, which is in `whole`
        kind = READ
        if not isinstance(node, ir.Read | ir.Address):
            kind = ATOMIC if isinstance(node, ir.Atomic) else WRITE
            if site.phase is not None and node.tensor.scope == ir.LOCAL:
                collected.written.add(node.tensor)
        where = site.path, site.phase, touch.loc, len(accesses), touch.statement
        accesses.append(GuardedAccess(kind, node.tensor, node.indices, *where))

    visit_touches(kernel.body, _Site(collected), visit)
    return collected


def is_dead(path: Path, condition: Expression, holds: bool, collected: KernelAccesses) -> bool:
    """Whether nothing runs under a condition, since it always is the other way."""
    return collected.facts(path).prove(condition) is (not holds)


def used_variables(collected: KernelAccesses, nodes: Iterable[Expression]) -> set[Variable]:
    """The variables in expressions, including the values of Lets."""
    return {node for node in seen_through(nodes, collected.lets) if isinstance(node, Variable)}


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A place of a program at which the traversal records accesses. `axis` is the next free NumPy axis, `phase` the
    enclosing Each or Move.
    """

    collected: KernelAccesses
    path: Path = ()
    axis: int = 1
    phase: Phase | None = None

    def assume(self, condition: Expression, holds: bool) -> _Site:
        while isinstance(condition, ir.Unary) and condition.operator == "not":
            condition, holds = condition.operand, not holds
        return replace(self, path=(*self.path, Guard(condition, holds)))

    def repeated(self, loop: Loop) -> _Site:
        # A While's condition is evaluated each time.
        return replace(self, path=(*self.path, loop)) if isinstance(loop, ir.While) else self

    def under(self, loop: Loop) -> _Site:
        collected, axis, phase = self.collected, self.axis, self.phase
        variables = tuple(bound_by(loop))
        has_tasks = isinstance(loop, (ir.Each, ir.Move))
        collected.names.append(loop)
        collected.axes[id(loop)] = axis
        for position, variable in enumerate(variables):
            place = axis if has_tasks else axis + position
            collected.binders[variable] = Binder(
                loop, position, place, phase is None and not has_tasks
            )
        if isinstance(loop, ir.Grid):
            collected.grid = loop
        if isinstance(loop, ir.While):
            collected.above[id(loop)] = self.path[:-1]
            return self
        collected.above[id(loop)] = self.path
        if isinstance(loop, ir.Move) or (isinstance(loop, ir.Each) and phase is None):
            phase = loop
        axis += 1 if has_tasks else len(variables)
        return replace(self, path=(*self.path, loop), axis=axis, phase=phase)

    def within(self, role: ir.Role) -> _Site:
        for below in walk(role.body):
            if isinstance(below, ir.Allocate):
                self.collected.roles[below.tensor] = role
        return self

    def behind(self, statement: Statement) -> _Site:
        collected = self.collected
        match statement:
            case ir.Let():
                collected.lets[statement.variable] = statement.value
                if self.phase is not None:
                    collected.private.add(statement.variable)
                collected.names.append(statement)
            case ir.Allocate():
                collected.homes[statement.tensor] = self.path
            case ir.Atomic() | ir.Do():
                if statement.result is not None:
                    collected.results.add(statement.result)
            case ir.Mma() | ir.Reduce() | ir.Scan():
                collected.whole.append(statement)
            case ir.Assert() if not reads_memory(statement.condition):
                guard = Guard(statement.condition, asserted=True)
                return replace(self, path=(*self.path, guard))
            case _:
                pass  # irrelevant to proofs
        return self
