"""The accesses of each phase to memory that other workers see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

import numpy as np

from taskc.analysis.accesses import Access, Crew, evaluate, make_access
from taskc.analysis.touches import Loop, Touch, Touching, reads, reads_memory, visit_touches
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.code_size import length
from taskc.ir.fragments import named_by_lines
from taskc.ir.nodes import BARRIER, GLOBAL, SHARED, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import all_below, substitute, walk
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
        """The accesses of one phase, or of a uniform statement; `lets` are the enclosing scalars."""
        accesses: list[Access] = []
        if isinstance(statement, ir.Move) and statement.how in MATRIX_MOVES:
            # Both the worker that names a line and the owner of its elements touch it.
            accesses += self.of(named_by_lines(statement), lets)

        def visit(touch: Touch[_Environment]) -> None:
            node = touch.node
            loc = touch.loc if isinstance(node, ir.Operand) else node.loc
            accesses.extend(self._access(node, touch.known, loc))

        visit_touches(statement, _Environment(self.worker, self.crew, lets), visit)
        return tuple(accesses)

    def of_expression(
        self, expression: Expression, lets: dict[Variable, Expression]
    ) -> tuple[Access, ...]:
        scope = _Environment(self.worker, self.crew, lets)
        return tuple(
            access
            for node, where in reads(expression, scope, _Environment.assume)
            for access in self._access(node, where, node.loc)
        )

    def arrivals(self, step: ir.RingStep, lets: dict[Variable, Expression]) -> tuple[Access, ...]:
        """The accesses that waiting for a step completes: the writes of its copies, by the workers that issued them."""
        slot = ir.Binary("%", step.step, ir.Constant(step.ring.stages))
        writes: list[Access] = []
        for tensor in step.ring.tensors:
            if tensor in self.copies and tensor in self.shared:
                move = self.copies[tensor]
                copied = replace(
                    move, indices=(slot, *move.indices[1:]), value=ir.Constant(0), guard=None
                )
                writes.extend(self.of(copied, lets))
        return tuple(writes)

    def look(self, step: ir.RingStep) -> Access:
        """All workers read a ring's mbarriers when they wait for a step."""
        return Access(self._mbarriers(step.ring), False, False, (), self.crew.workers, step.loc)

    def set_up(self, ring: Ring, loc: Location) -> Access:
        """One worker writes a ring's mbarriers."""
        return Access(self._mbarriers(ring), True, False, (), self.crew.workers[:1], loc)

    def _mbarriers(self, ring: Ring) -> Tensor:
        if ring not in self.mbarriers:
            self.mbarriers[ring] = Tensor(f"{ring.name}_full", u64, (ring.stages,), BARRIER)
        return self.mbarriers[ring]

    def _access(self, node: Touching, scope: _Environment, loc: Location) -> Iterator[Access]:
        if node.tensor not in self.shared:
            return
        stores = isinstance(node, ir.Store | ir.Atomic | ir.Move)
        crew = scope.storing if stores and scope.storing is not None else scope.crew
        if isinstance(node, ir.Operand):  # workers may read any of the matrix's elements
            indices: tuple[Expression | None, ...] = (*node.origin[:-2], None, None)
        else:
            indices = node.indices
        yield make_access(
            node.tensor,
            [index and scope.resolve(index) for index in indices],
            crew if self.masked else replace(crew, active=None),
            scope.divergent,
            writes=stores or isinstance(node, ir.Address),
            atomic=isinstance(node, ir.Atomic),
            loc=loc,
        )


@dataclass(frozen=True, slots=True)
class _Environment:
    """lets     scalars and their definitions
    divergent    variables with different, unknown values for different workers
    storing the crew without replicas; nested: whether inside a mapping loop
    """

    worker: Variable
    crew: Crew
    lets: dict[Variable, Expression]
    divergent: frozenset[Variable] = frozenset()
    storing: Crew | None = None
    nested: bool = False

    def resolve(self, expression: Expression) -> Expression:
        return substitute(expression, self.lets)

    def assume(self, condition: Expression, holds: bool) -> _Environment:
        resolved = self.resolve(condition if holds else ir.Unary("not", condition))
        storing = None if self.storing is None else self.storing.where(resolved)
        return replace(self, crew=self.crew.where(resolved), storing=storing)

    def repeated(self, loop: Loop) -> _Environment:
        return self

    def under(self, loop: Loop) -> _Environment:
        match loop:
            case ir.Each():
                return self._each(loop)
            case ir.Move():
                return self._move(loop)
            case ir.For() if self.nested:
                return self._trips(loop)
            case _:
                return self  # all workers are in the same iteration

    def within(self, role: ir.Role) -> _Environment:
        return replace(self, crew=Crew.everyone(role.workers, role.first))

    def behind(self, statement: Statement) -> _Environment:
        if not isinstance(statement, ir.Let):
            return self
        variable, value = statement.variable, statement.value
        if reads_memory(value):
            return self._unknown(variable) if self.nested else self
        return replace(self, lets={**self.lets, variable: self.resolve(value)})

    def _unknown(self, *variables: Variable) -> _Environment:
        return replace(self, divergent=self.divergent.union(variables))

    def _each(self, loop: ir.Each) -> _Environment:
        worker = None if loop.worker is None else self.resolve(loop.worker)
        crew = self.crew.enter(replace(loop, worker=worker), self.worker)
        if crew is None:
            return self._unknown(*loop.variables)
        storing = crew.first_owners(loop) if not self.nested else None
        return replace(self, crew=crew, storing=storing, nested=True)

    def _move(self, move: ir.Move) -> _Environment:
        assert move.by is not None
        loop = ir.Each(move.variables, move.by, None, ir.Sequence(()))
        sends = move.how == "tma" and move.tensor.scope == GLOBAL
        crew = (self.crew.issue if sends else self.crew.enter)(loop, self.worker)
        assert crew is not None
        storing = crew if sends else crew.first_owners(loop)
        if move.how == "tma" and not sends:
            issuer = np.full_like(crew.workers, crew.workers.min())
            crew = storing = replace(crew, workers=issuer)
        return replace(self, crew=crew, storing=storing, nested=True)

    def _trips(self, loop: ir.For) -> _Environment:
        """Inside a mapping loop, workers may be in different iterations at the same time: all are enumerated."""
        start, stop = (evaluate(self.resolve(x), {}) for x in (loop.start, loop.stop))
        if start is None or stop is None:
            return self._unknown(loop.variable)
        numbers = range(int(start), int(stop), loop.step)
        count = length(numbers)
        if count > ENUMERATED_TRIPS or self.crew.workers.size * count > ENUMERATED_PAIRS:
            return self._unknown(loop.variable)
        trips = np.array(numbers, np.int64)
        storing = None if self.storing is None else self.storing.repeat(loop.variable, trips)
        return replace(self, crew=self.crew.repeat(loop.variable, trips), storing=storing)


def rings_between_roles(body: Statement) -> frozenset[Ring]:
    """The rings that one role fills and another reads."""
    shared_rings: set[Ring] = set()
    for roles in all_below(body, ir.Roles):
        users = [{step.ring for step in all_below(role.body, ir.RingStep)} for role in roles.roles]
        shared_rings |= {
            ring for rings in users for ring in rings if sum(ring in u for u in users) > 1
        }
    return frozenset(shared_rings)


def rings_sent_on(body: Statement) -> frozenset[Ring]:
    """The rings between roles whose slots are overwritten by their readers, and leave by bulk copies."""
    sent = sent_by_bulk_copies(body)
    return frozenset(
        ring for ring in rings_between_roles(body) if not sent.isdisjoint(ring.tensors)
    )


def surely_runs(loop: Statement) -> bool:
    match loop:
        case ir.For(start=ir.Constant(value=start), stop=ir.Constant(value=stop), step=step):
            return start < stop if step > 0 else start > stop
    return False


def shared_tensors(body: Statement) -> frozenset[Tensor]:
    """The tensors through which workers can affect each other: shared memory, and written global tensors."""
    # Other statements write no memory: Do comes later, and folds are from tile to tile.
    written = {node.tensor for node in all_below(body, ir.Store)}
    written |= {node.tensor for node in all_below(body, ir.Atomic)}
    written |= {node.tensor for node in all_below(body, ir.Move)}
    return frozenset([tensor for tensor in written if tensor.scope == GLOBAL] + shared_memory(body))


def shared_memory(body: Statement) -> list[Tensor]:
    """The tensors in a block's shared memory, in the order of their allocation."""
    return [node.tensor for node in all_below(body, ir.Allocate) if node.tensor.scope == SHARED]


def sent_by_bulk_copies(body: Statement) -> frozenset[Tensor]:
    """Shared memory that bulk copies transfer to global memory."""
    return frozenset(
        node.tensor
        for move in all_below(body, ir.Move)
        if move.how == "tma" and move.tensor.scope == GLOBAL
        for node in walk(move.value)
        if isinstance(node, ir.Read)
    )
