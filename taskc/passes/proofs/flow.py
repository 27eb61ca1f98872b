"""Every access of a program with all that is known where it happens.

Conditions on memory that may change count until a statement writes that memory: a counter that was
tested may be used as an index, until it is counted on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from taskc.analysis.facts import Facts
from taskc.analysis.reads import reads
from taskc.errors import NOWHERE, Location
from taskc.ir import nodes as ir
from taskc.ir.build import add
from taskc.ir.effects import written
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, statements, walk, walk_statements
from taskc.ir.types import boolean
from taskc.passes.proofs.paths import Guard, Path, conjuncts


@dataclass(frozen=True, slots=True)
class State:
    """What is known at a point.

    `now` includes conditions on memory that may change: the tensors in `reads`. As soon as one of
    them is written, only `lasting` is still true. `names` are conditions on such memory that would be
    the same if they were asked again. `written` tells what each statement stores to.
    """

    now: Facts
    lasting: Facts
    reads: frozenset[Tensor]
    path: Path
    written: dict[int, frozenset[Tensor]]
    names: dict[Variable, Expression] = field(default_factory=dict)

    def enter(self, statement: Statement) -> State:
        lasting = self.lasting.enter(statement)
        now = self.now.enter(statement) if self.reads else lasting
        names = self.names
        if isinstance(statement, ir.Let) and statement.variable.dtype is boolean:
            names = (
                {**names, statement.variable: statement.value} if _reads(statement.value) else names
            )
        return replace(self, now=now, lasting=lasting, names=names)

    def under(self, loop: Any) -> State:
        return replace(self.enter(loop), path=(*self.path, loop))

    def assume(self, condition: Expression, holds: bool = True) -> State:
        """A part of it may still be known when what another part reads has changed."""
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

    def after(self, node: Statement) -> State:
        """Where the statement has run, maybe."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """An access to an element; `value` is what a Store puts there."""

    tensor: Tensor
    indices: tuple[Expression, ...]
    state: State
    loc: Location
    value: Expression | None = None


Walk: TypeAlias = Generator[Touch, None, State]


def touches(kernel: ir.Kernel, facts: Facts) -> Iterator[Touch]:
    """In program order; `facts` are those at the top of the kernel."""
    top = State(facts, facts, frozenset(), (), _written(kernel.body))
    yield from _statement(kernel.body, top, kernel.worker)


def _written(body: Statement) -> dict[int, frozenset[Tensor]]:
    """What each statement stores to, in whatever is below it: of those below first."""
    found: dict[int, frozenset[Tensor]] = {}
    for node in [*walk_statements(body)][::-1]:
        below = (found[id(inner)] for inner in statements(node))
        found[id(node)] = frozenset(written(node)).union(*below)
    return found


def _statement(node: Statement, state: State, worker: Variable) -> Walk:
    """The touches of a statement; it returns what is known behind it."""
    match node:
        case ir.Sequence():
            inside = state
            for statement in node.statements:
                inside = yield from _statement(statement, inside, worker)
        case ir.Let():
            yield from _expression(node.value, state, node)
            return state.enter(node)
        case ir.Assert():
            yield from _expression(node.condition, state, node)
            return state.assume(node.condition)
        case ir.If():
            yield from _expression(node.condition, state, node)
            yield from _statement(node.then, state.assume(node.condition), worker)
            if node.otherwise is not None:
                otherwise = state.assume(node.condition, False)
                yield from _statement(node.otherwise, otherwise, worker)
        case ir.While():
            again = state.after(node)
            yield from _expression(node.condition, again, node)
            inside = again.assume(node.condition)
            inside = replace(inside, path=(*inside.path, node))
            yield from _statement(node.body, inside, worker)
        case ir.For() | ir.Grid() | ir.Pipeline() | ir.Each():
            for expression in expressions(node):
                yield from _expression(expression, state, node)
            yield from _statement(node.body, state.after(node).under(node), worker)
        case ir.Move():
            yield from _move(node, state)
        case ir.Store() | ir.Atomic():
            for expression in (*node.indices, node.value):
                yield from _expression(expression, state, node)
            value = node.value if isinstance(node, ir.Store) else None
            yield Touch(node.tensor, node.indices, state, node.loc, value)
        case ir.Roles():
            for role in node.roles:
                now = state.now.enter_role(role, worker)
                lasting = state.lasting.enter_role(role, worker)
                inside = replace(state, now=now, lasting=lasting)
                yield from _statement(role.body, inside, worker)
        case ir.Mma():
            yield from _operand(node.left, state, node.loc)
            yield from _operand(node.right, state, node.loc)
        case _:
            for expression in expressions(node):
                yield from _expression(expression, state, node)
    return state.after(node)


def _move(node: ir.Move, state: State) -> Iterator[Touch]:
    state = state.under(node)
    if node.guard is not None:
        yield from _expression(node.guard, state, node)
        state = state.assume(node.guard)
    for expression in (*node.indices, node.value):
        yield from _expression(expression, state, node)
    yield Touch(node.tensor, node.indices, state, node.loc)


def _operand(operand: ir.Operand, state: State, loc: Location) -> Iterator[Touch]:
    """The matrix of a product: its first and its last row and column."""
    rows, columns = reversed(operand.shape) if operand.transposed else operand.shape
    *leading, row, column = operand.origin
    for expression in operand.origin:
        for node in walk(expression):
            if isinstance(node, ir.Read):
                yield Touch(node.tensor, node.indices, state, node.loc)
    last = (*leading, add(row, rows - 1), add(column, columns - 1))
    for indices in (operand.origin, last):
        yield Touch(operand.tensor, indices, state, loc)


def _expression(node: Expression, state: State, statement: Statement) -> Iterator[Touch]:
    for read, where in reads(node, state, State.assume):
        loc = statement.loc if read.loc == NOWHERE else read.loc
        yield Touch(read.tensor, read.indices, where, loc)


def _reads(condition: Expression) -> frozenset[Tensor]:
    return frozenset(node.tensor for node in walk(condition) if isinstance(node, ir.Read))
