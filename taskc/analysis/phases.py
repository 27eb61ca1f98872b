"""The accesses of each phase: what its workers read and write in memory that others see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from taskc.analysis.accesses import Access, Crew, evaluate, make_access
from taskc.analysis.reads import reads
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.matrix_moves import named_by_lines
from taskc.ir.nodes import BARRIER, GLOBAL, SHARED, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, substitute, walk
from taskc.ir.target import MATRIX_MOVES
from taskc.ir.types import u64

ENUMERATED_TRIPS = 64
ENUMERATED_PAIRS = 1 << 20


@dataclass(frozen=True, slots=True)
class Phases:
    """Collects accesses. `shared` are the tensors that several workers of a block can touch.

    `copies` maps the tensors of rings that travel by cp.async to a move into them: waiting for a step
    makes its writes complete. `mbarriers` stand for those that rings get later. Unmasked, accesses keep
    the shape [worker, task].
    """

    worker: Variable
    crew: Crew
    shared: frozenset[Tensor]
    copies: dict[Tensor, ir.Move]
    masked: bool = True
    mbarriers: dict[Ring, Tensor] = field(default_factory=dict)

    def of(self, statement: Statement, lets: dict[Variable, Expression]) -> tuple[Access, ...]:
        """What one phase, or a uniform statement, touches; `lets` are the scalars around it."""
        return tuple(self._statement(statement, _Scope(self.crew, lets, frozenset())))

    def of_expression(
        self, expression: Expression, lets: dict[Variable, Expression]
    ) -> tuple[Access, ...]:
        return tuple(self._expression(expression, _Scope(self.crew, lets, frozenset())))

    def arrivals(self, step: ir.RingStep, lets: dict[Variable, Expression]) -> tuple[Access, ...]:
        """What waiting for a step completes: the writes of its copies, by the workers that issued them."""
        slot = ir.Binary("%", step.step, ir.Constant(step.ring.stages))
        found: list[Access] = []
        for tensor in step.ring.tensors:
            if tensor in self.copies and tensor in self.shared:
                move = self.copies[tensor]
                moved = replace(
                    move, indices=(slot, *move.indices[1:]), value=ir.Constant(0), guard=None
                )
                found.extend(self.of(moved, lets))
        return tuple(found)

    def look(self, step: ir.RingStep) -> Access:
        """All workers look at a ring's mbarriers when they wait for a step."""
        return Access(self._mbarriers(step.ring), False, False, (), self.crew.workers, step.loc)

    def set_up(self, ring: Ring, loc: Location) -> Access:
        """One worker writes them."""
        return Access(self._mbarriers(ring), True, False, (), self.crew.workers[:1], loc)

    def _mbarriers(self, ring: Ring) -> Tensor:
        if ring not in self.mbarriers:
            self.mbarriers[ring] = Tensor(f"{ring.name}_full", u64, (ring.stages,), BARRIER)
        return self.mbarriers[ring]

    # Statements.

    def _statement(self, statement: Statement, scope: _Scope) -> Iterator[Access]:
        match statement:
            case ir.Sequence():
                for inner in statement.statements:
                    yield from self._statement(inner, scope)
                    if isinstance(inner, ir.Let):
                        scope = scope.bind(inner.variable, inner.value)
            case ir.Each():
                yield from self._each(statement, scope)
            case ir.Move():
                yield from self._move(statement, scope)
            case ir.Store():
                yield from self._expressions(statement, scope)
                yield from self._touch(
                    statement, statement.tensor, statement.indices, scope.stores()
                )
            case ir.Atomic():
                yield from self._expressions(statement, scope)
                yield from self._touch(
                    statement, statement.tensor, statement.indices, scope.stores(), atomic=True
                )
            case ir.If():
                yield from self._expression(statement.condition, scope)
                yield from self._statement(statement.then, scope.where(statement.condition))
                if statement.otherwise is not None:
                    otherwise = scope.where(statement.condition, holds=False)
                    yield from self._statement(statement.otherwise, otherwise)
            case ir.For():
                yield from self._expressions(statement, scope)
                yield from self._statement(statement.body, scope.loop(statement))
            case ir.While():
                yield from self._expression(statement.condition, scope)
                yield from self._statement(statement.body, scope)
            case ir.Mma():
                for operand in (statement.left, statement.right):
                    leading = operand.origin[:-2]
                    if operand.tensor in self.shared:
                        unknown = (Variable("row"), Variable("column"))
                        wild = replace(scope, wild=scope.wild | set(unknown))
                        yield from self._touch(
                            statement, operand.tensor, (*leading, *unknown), wild, writes=False
                        )
            case _:
                yield from self._expressions(statement, scope)

    def _each(self, loop: ir.Each, scope: _Scope) -> Iterator[Access]:
        if loop.worker is not None:
            yield from self._expression(loop.worker, scope)
        worker = None if loop.worker is None else scope.resolve(loop.worker)
        crew = scope.crew.enter(replace(loop, worker=worker), self.worker)
        if crew is None:
            unknown = replace(scope, wild=scope.wild | set(loop.variables))
            yield from self._statement(loop.body, unknown)
            return
        inner = replace(
            scope, crew=crew, storing=crew.first_owners(loop) if not scope.nested else None
        )
        yield from self._statement(loop.body, replace(inner, nested=True))

    def _move(self, move: ir.Move, scope: _Scope) -> Iterator[Access]:
        assert move.by is not None
        loop = ir.Each(move.variables, move.by, None, ir.Sequence(()))
        sends = move.how == "tma" and move.tensor.scope == GLOBAL
        crew = (scope.crew.issue if sends else scope.crew.enter)(loop, self.worker)
        assert crew is not None
        storing = crew if sends else crew.first_owners(loop)
        if move.how == "tma" and not sends:
            issuer = np.full_like(crew.workers, crew.workers.min())
            crew = storing = replace(crew, workers=issuer)
        inner = replace(scope, crew=crew, storing=storing, nested=True)
        if (
            move.how in MATRIX_MOVES
        ):  # who names a line touches it, and so does who has its elements
            yield from self._move(named_by_lines(move), scope)
        yield from self._expressions(move, inner)
        if move.guard is not None:
            inner = inner.where(move.guard)
        yield from self._touch(move, move.tensor, move.indices, inner.stores())

    # Expressions.

    def _expressions(self, statement: Statement, scope: _Scope) -> Iterator[Access]:
        for expression in expressions(statement):
            yield from self._expression(expression, scope)

    def _expression(self, expression: Expression, scope: _Scope) -> Iterator[Access]:
        for node, where in reads(expression, scope, _Scope.where):
            writes = isinstance(node, ir.Address)
            yield from self._touch(node, node.tensor, node.indices, where, writes=writes)

    def _touch(
        self,
        node: ir.Move | Statement | Expression,
        tensor: Tensor,
        indices: tuple[Expression, ...],
        scope: _Scope,
        *,
        writes: bool = True,
        atomic: bool = False,
    ) -> Iterator[Access]:
        if tensor in self.shared:
            resolved = [scope.resolve(index) for index in indices]
            crew = scope.crew if self.masked else replace(scope.crew, active=None)
            yield make_access(
                tensor, resolved, crew, scope.wild, writes=writes, atomic=atomic, loc=node.loc
            )


@dataclass(frozen=True, slots=True)
class _Scope:
    """lets    scalars and what they stand for
    wild    variables that different workers may see different, unknown values of
    storing the crew without replicas; nested: inside a mapping loop
    """

    crew: Crew
    lets: dict[Variable, Expression]
    wild: frozenset[Variable]
    storing: Crew | None = field(default=None)
    nested: bool = False

    def resolve(self, expression: Expression) -> Expression:
        return substitute(expression, self.lets)

    def bind(self, variable: Variable, value: Expression) -> _Scope:
        if any(isinstance(node, ir.Read) for node in walk(value)):
            return replace(self, wild=self.wild | {variable}) if self.nested else self
        return replace(self, lets={**self.lets, variable: self.resolve(value)})

    def where(self, condition: Expression, holds: bool = True) -> _Scope:
        resolved = self.resolve(condition if holds else ir.Unary("not", condition))
        storing = None if self.storing is None else self.storing.where(resolved)
        return replace(self, crew=self.crew.where(resolved), storing=storing)

    def stores(self) -> _Scope:
        return self if self.storing is None else replace(self, crew=self.storing)

    def loop(self, loop: ir.For) -> _Scope:
        """Inside a mapping loop, workers may be at different iterations at a time: all are enumerated."""
        if not self.nested:
            return self
        start, stop = (evaluate(self.resolve(x), {}) for x in (loop.start, loop.stop))
        if start is None or stop is None:
            return replace(self, wild=self.wild | {loop.variable})
        trips = np.arange(int(start), int(stop), loop.step)
        if len(trips) > ENUMERATED_TRIPS or self.crew.workers.size * len(trips) > ENUMERATED_PAIRS:
            return replace(self, wild=self.wild | {loop.variable})
        storing = None if self.storing is None else self.storing.repeat(loop.variable, trips)
        return replace(self, crew=self.crew.repeat(loop.variable, trips), storing=storing)


def rings_between_roles(body: Statement) -> frozenset[Ring]:
    """The rings that one role fills and another reads."""
    found: set[Ring] = set()
    for roles in walk(body):
        if isinstance(roles, ir.Roles):
            users = [
                {step.ring for step in walk(role.body) if isinstance(step, ir.RingStep)}
                for role in roles.roles
            ]
            found |= {
                ring for rings in users for ring in rings if sum(ring in u for u in users) > 1
            }
    return frozenset(found)


def surely_runs(loop: Statement) -> bool:
    match loop:
        case ir.For(start=ir.Constant(value=start), stop=ir.Constant(value=stop), step=step):
            return start < stop if step > 0 else start > stop
    return False


def shared_tensors(body: Statement) -> frozenset[Tensor]:
    """The tensors by which workers can affect each other: shared memory, and what is written globally."""
    found: set[Tensor] = set()
    for node in walk(body):
        match node:
            case ir.Allocate(tensor=tensor) if tensor.scope == SHARED:
                found.add(tensor)
            case ir.Store(tensor=tensor) | ir.Atomic(tensor=tensor) | ir.Move(tensor=tensor):
                if tensor.scope == GLOBAL:
                    found.add(tensor)
            case _:
                pass  # it writes no memory: Do comes later, and folds are from tile to tile
    return frozenset(found)
