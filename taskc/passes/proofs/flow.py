"""Every access of a program with all that is known where it happens.

Conditions on memory that may change count until a statement writes that memory: a counter that was
tested may be used as an index, until it is counted on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from taskc.analysis.facts import Facts
from taskc.analysis.touches import Loop, Touch, touches
from taskc.ir import nodes as ir
from taskc.ir.build import add
from taskc.ir.effects import written
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import statements, walk, walk_statements
from taskc.ir.types import boolean
from taskc.passes.proofs.paths import Guard, Path, conjuncts

Indices: TypeAlias = tuple[Expression, ...]


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

    def _after(self, node: Statement) -> State:
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


def states(kernel: ir.Kernel, facts: Facts) -> Iterator[tuple[Touch[State], Indices]]:
    """Every access in program order, with its indices; `facts` are those at the top of the kernel."""
    top = State(facts, facts, frozenset(), (), _written(kernel.body), kernel.worker)
    for touch in touches(kernel.body, top):
        if isinstance(touch.node, ir.Operand):
            for corner in _corners(touch.node):
                yield touch, corner
        else:
            yield touch, touch.node.indices


def _corners(operand: ir.Operand) -> tuple[Indices, Indices]:
    """The first element of a product's matrix, and that in its last row and column."""
    rows, columns = reversed(operand.shape) if operand.transposed else operand.shape
    *leading, row, column = operand.origin
    return operand.origin, (*leading, add(row, rows - 1), add(column, columns - 1))


def _written(body: Statement) -> dict[int, frozenset[Tensor]]:
    """What each statement stores to, in whatever is below it: of those below first."""
    found: dict[int, frozenset[Tensor]] = {}
    for node in [*walk_statements(body)][::-1]:
        below = (found[id(inner)] for inner in statements(node))
        found[id(node)] = frozenset(written(node)).union(*below)
    return found


def _reads(condition: Expression) -> frozenset[Tensor]:
    return frozenset(node.tensor for node in walk(condition) if isinstance(node, ir.Read))
