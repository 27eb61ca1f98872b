"""Every access to a tensor in a program, with the loops and the conditions that it is under.

A path is the tuple of frames from the kernel's body down to the access:
loops (Grid, For, Pipeline, While, Each, Move) and guards. A guard comes from an If, a Select, the
right operand of a lazy `and` or `or`, or from the guard of a Move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from taskc.analysis.facts import Facts
from taskc.analysis.reads import reads_memory, seen_through
from taskc.analysis.touches import Loop, touches
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.interval import Interval
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import bound_by, walk
from taskc.ir.types import boolean
from taskc.passes.proofs.cells import cell_ranges
from taskc.passes.proofs.paths import Guard, Path, Phase

READ, WRITE, ATOMIC = "read", "write", "atomic"


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """`order` counts accesses in program order; `phase` is the outermost Each, or the Move."""

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
    """Where a variable is bound: the `position`-th of a loop's variables.

    `axis` counts NumPy axes from the right; axis 0 belongs to the workers. `shared` variables have
    one value for the whole block: nothing above the loop is an Each or a Move.
    """

    loop: Loop
    position: int
    axis: int
    shared: bool


@dataclass(slots=True)
class Program:
    """What the walk found.

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
    accesses: list[Access] = field(default_factory=list)
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
        """What is known at the end of a path."""
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
        """The named ones."""
        return {name: value for name, value in self.lets.items() if name.dtype is boolean}

    def on(self, tensor: Tensor) -> list[Access]:
        return [access for access in self.accesses if access.tensor is tensor]


def collect(kernel: ir.Kernel) -> Program:
    program = Program(kernel, ranges=cell_ranges(kernel))
    accesses = program.accesses
    for touch in touches(kernel.body, _Site(program)):
        node, site = touch.node, touch.known
        if isinstance(node, ir.Operand):
            continue  # of a product, which is among `whole`
        kind = READ
        if not isinstance(node, ir.Read | ir.Address):
            kind = ATOMIC if isinstance(node, ir.Atomic) else WRITE
            if site.phase is not None and node.tensor.scope == ir.LOCAL:
                program.written.add(node.tensor)
        where = site.path, site.phase, touch.loc, len(accesses), touch.statement
        accesses.append(Access(kind, node.tensor, node.indices, *where))
    return program


def is_dead(path: Path, condition: Expression, holds: bool, program: Program) -> bool:
    """A condition under which nothing runs: wherever it is asked, it is the other way."""
    return program.facts(path).prove(condition) is (not holds)


def used_variables(program: Program, nodes: Iterable[Expression]) -> set[Variable]:
    """The variables in expressions, those in the values of Lets included."""
    return {node for node in seen_through(nodes, program.lets) if isinstance(node, Variable)}


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A place of a program, which what is found there is entered in. `axis` is the next free NumPy axis; `phase` the
    Each or Move above."""

    program: Program
    path: Path = ()
    axis: int = 1
    phase: Phase | None = None

    def assume(self, condition: Expression, holds: bool) -> _Site:
        while isinstance(condition, ir.Unary) and condition.operator == "not":
            condition, holds = condition.operand, not holds
        return replace(self, path=(*self.path, Guard(condition, holds)))

    def repeated(self, loop: Loop) -> _Site:
        # A While's condition is asked each time.
        return replace(self, path=(*self.path, loop)) if isinstance(loop, ir.While) else self

    def under(self, loop: Loop) -> _Site:
        program, axis, phase = self.program, self.axis, self.phase
        variables = tuple(bound_by(loop))
        has_tasks = isinstance(loop, (ir.Each, ir.Move))
        program.names.append(loop)
        program.axes[id(loop)] = axis
        for position, variable in enumerate(variables):
            place = axis if has_tasks else axis + position
            program.binders[variable] = Binder(
                loop, position, place, phase is None and not has_tasks
            )
        if isinstance(loop, ir.Grid):
            program.grid = loop
        if isinstance(loop, ir.While):
            program.above[id(loop)] = self.path[:-1]
            return self
        program.above[id(loop)] = self.path
        if isinstance(loop, ir.Move) or (isinstance(loop, ir.Each) and phase is None):
            phase = loop
        axis += 1 if has_tasks else len(variables)
        return replace(self, path=(*self.path, loop), axis=axis, phase=phase)

    def within(self, role: ir.Role) -> _Site:
        for below in walk(role.body):
            if isinstance(below, ir.Allocate):
                self.program.roles[below.tensor] = role
        return self

    def behind(self, statement: Statement) -> _Site:
        program = self.program
        match statement:
            case ir.Let():
                program.lets[statement.variable] = statement.value
                if self.phase is not None:
                    program.private.add(statement.variable)
                program.names.append(statement)
            case ir.Allocate():
                program.homes[statement.tensor] = self.path
            case ir.Atomic() | ir.Do():
                if statement.result is not None:
                    program.results.add(statement.result)
            case ir.Mma() | ir.Reduce() | ir.Scan():
                program.whole.append(statement)
            case ir.Assert() if not reads_memory(statement.condition):
                guard = Guard(statement.condition, asserted=True)
                return replace(self, path=(*self.path, guard))
            case _:
                pass  # nothing that a proof asks for
        return self
