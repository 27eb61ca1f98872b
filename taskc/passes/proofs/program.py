"""Every access to a tensor in a program, with the loops and the conditions that it is under.

One walk serves all proofs. A path is the tuple of frames from the kernel's body down to the access:
loops (Grid, For, Pipeline, While, Each, Move) and guards. A guard comes from an If, a Select, the
right operand of a lazy `and` or `or`, or from the guard of a Move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from taskc.analysis.facts import Facts
from taskc.analysis.reads import reads
from taskc.errors import NOWHERE, Location
from taskc.ir import nodes as ir
from taskc.ir.interval import Interval
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, statements, walk
from taskc.ir.types import boolean
from taskc.passes.proofs.cells import cell_ranges
from taskc.passes.proofs.paths import Guard, Loop, Path, Phase

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
    walker = _Walker(Program(kernel, ranges=cell_ranges(kernel)))
    walker.visit(kernel.body, (), 1, None)
    return walker.program


def is_dead(path: Path, condition: Expression, holds: bool, program: Program) -> bool:
    """A condition under which nothing runs: wherever it is asked, it is the other way."""
    return program.facts(path).prove(condition) is (not holds)


def used_variables(program: Program, nodes: Iterable[Expression]) -> set[Variable]:
    """The variables in expressions, those in the values of Lets included."""
    seen: set[Variable] = set()
    stack: list[Expression] = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, Variable):
            if node not in seen:
                seen.add(node)
                if node in program.lets:
                    stack.append(program.lets[node])
        else:
            stack.extend(expressions(node))
    return seen


def _reads(condition: Expression) -> bool:
    """What is read may change later."""
    return any(isinstance(node, ir.Read) for node in walk(condition))


class _Walker:
    """Fills a Program. `axis` is the next free NumPy axis; `phase` the Each or Move above."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def visit(self, node: Statement, path: Path, axis: int, phase: Phase | None) -> None:
        program = self.program
        match node:
            case ir.Sequence():
                for statement in node.statements:
                    self.visit(statement, path, axis, phase)
                    if isinstance(statement, ir.Assert) and not _reads(statement.condition):
                        path = (*path, Guard(statement.condition, asserted=True))
            case ir.Let():
                self.expression(node.value, path, phase, node)
                program.lets[node.variable] = node.value
                if phase is not None:
                    program.private.add(node.variable)
                program.names.append(node)
            case ir.Allocate():
                program.homes[node.tensor] = path
            case ir.If():
                self.expression(node.condition, path, phase, node)
                condition, holds = node.condition, True
                while isinstance(condition, ir.Unary) and condition.operator == "not":
                    condition, holds = condition.operand, not holds
                self.visit(node.then, (*path, Guard(condition, holds)), axis, phase)
                if node.otherwise is not None:
                    self.visit(node.otherwise, (*path, Guard(condition, not holds)), axis, phase)
            case ir.Grid() | ir.For() | ir.Pipeline() | ir.While() | ir.Each():
                self.loop(node, path, axis, phase)
            case ir.Move():
                self.move(node, path, axis)
            case ir.Store() | ir.Atomic():
                for expression in (*node.indices, node.value):
                    self.expression(expression, path, phase, node)
                kind = WRITE if isinstance(node, ir.Store) else ATOMIC
                self.access(kind, node.tensor, node.indices, path, phase, node, node.loc)
                if isinstance(node, ir.Atomic) and node.result is not None:
                    program.results.add(node.result)
            case ir.Do():
                for expression in node.operands:
                    self.expression(expression, path, phase, node)
                if node.result is not None:
                    program.results.add(node.result)
            case ir.Roles():
                for role in node.roles:
                    for below in walk(role.body):
                        if isinstance(below, ir.Allocate):
                            program.roles[below.tensor] = role
                    self.visit(role.body, path, axis, phase)
            case _:
                for expression in expressions(node):
                    self.expression(expression, path, phase, node)
                if isinstance(node, (ir.Mma, ir.Reduce, ir.Scan)):
                    program.whole.append(node)
                for statement in statements(node):
                    self.visit(statement, path, axis, phase)

    def loop(
        self,
        node: ir.Grid | ir.For | ir.Pipeline | ir.While | ir.Each,
        path: Path,
        axis: int,
        phase: Phase | None,
    ) -> None:
        inside = (*path, node)
        above = inside if isinstance(node, ir.While) else path  # its condition is asked each time
        for expression in expressions(node):
            self.expression(expression, above, phase, node)
        variables: tuple[Variable, ...] = ()
        if isinstance(node, (ir.Grid, ir.Each)):
            variables = node.variables
        elif not isinstance(node, ir.While):
            variables = (node.variable,)
        if isinstance(node, ir.Grid):
            self.program.grid = node
        self.program.names.append(node)
        each = isinstance(node, ir.Each)
        self.program.axes[id(node)] = axis
        self.program.above[id(node)] = path
        for position, variable in enumerate(variables):
            place = axis if each else axis + position
            shared = phase is None and not each
            self.program.binders[variable] = Binder(node, position, place, shared)
        if isinstance(node, ir.Each) and phase is None:
            phase = node
        self.visit(node.body, inside, axis + (1 if each else len(variables)), phase)

    def move(self, node: ir.Move, path: Path, axis: int) -> None:
        self.program.names.append(node)
        self.program.axes[id(node)] = axis
        for position, variable in enumerate(node.variables):
            self.program.binders[variable] = Binder(node, position, axis, False)
        path = (*path, node)
        if node.guard is not None:
            self.expression(node.guard, path, node, node)
            path = (*path, Guard(node.guard))
        for expression in (*node.indices, node.value):
            self.expression(expression, path, node, node)
        self.access(WRITE, node.tensor, node.indices, path, node, node, node.loc)

    def expression(self, node: Expression, path: Path, phase: Phase | None, at: Statement) -> None:
        def under(path: Path, condition: Expression, holds: bool) -> Path:
            return *path, Guard(condition, holds)

        for read, where in reads(node, path, under):
            loc = at.loc if read.loc == NOWHERE else read.loc
            self.access(READ, read.tensor, read.indices, where, phase, at, loc)

    def access(
        self,
        kind: str,
        tensor: Tensor,
        indices: tuple[Expression, ...],
        path: Path,
        phase: Phase | None,
        at: Statement,
        loc: Location,
    ) -> None:
        accesses = self.program.accesses
        accesses.append(Access(kind, tensor, indices, path, phase, loc, len(accesses), at))
        if kind != READ and phase is not None and tensor.scope == ir.LOCAL:
            self.program.written.add(tensor)
