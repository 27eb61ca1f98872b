"""Ring steps become the operations of their transport; barriers are already placed.

    cp.async    commit(k) -> cp.async.commit; wait(k) -> cp.async.wait(stages - 2)
    tma         shared full: mbarrier[stages], one arrival each
                move ring[slot, i, q] ... how tma
                          -> if worker == 0: tma.load(&ring[slot, 0, 0], &a[row, p], &full[slot], ...)
                commit(k) -> if worker == 0: mbarrier.expect(&full[k % stages], bytes)
                wait(k)   -> mbarrier.wait(&full[k % stages], k // stages % 2)
    roles       the same, and an `empty` mbarrier a slot: release(k) -> every consumer arrives;
                acquire(k) -> mbarrier.wait(&empty[k % stages], k // stages % 2 ^ 1), by the workers that issue
                copies. In a warpgroup that only multiplies asynchronously, one worker arrives: it waits
                for everyone's products
    turns       and a `turn` mbarrier, if several roles read the ring, each its own run of steps: enter(k) ->
                mbarrier.wait(&turn[0], (k + 1) % 2), leave(k) -> arrive. A worker that waits for a step has seen
                all steps before it, or its parity would be that of another one
    stores      move c[row + i, j] ... = out[i, j] how tma
                          -> if worker == 0: tma.store(&c[row, 0], &out[0, 0], ...); tma.commit()
                (or worker % 128 == 0, of the rows of its warpgroup) and a tma.wait(0) at the end
    turns       schedule.take_turn -> barrier.named(1 + worker // 128, 256), where the previous warpgroup arrives
                schedule.give_turn -> barrier.arrive(1 + (worker // 128 + 1) % 2, 256); of two warpgroups
                the second one begins by giving the first its turn, which the first takes at the end
    registers   nothing: barriers alone order it

The number of a step counts from 0 at the ring's allocation. If that is executed more than once (a pipelined
loop within a loop, or in a tile whose steps can't be counted across tiles) the mbarriers are set up again each
time; between roles, where some workers may still wait for the old ones, after one more barrier. Rings that are
allocated one after another are set up before one barrier.

Bulk copies write by another proxy than stores do. If stores may have reached memory that the ring now
uses (of a tensor that shares its bytes), every worker executes fence.proxy.async before the barrier after
the set-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from math import prod

from taskc.analysis.accesses import share_bytes
from taskc.analysis.coalescing import facts_of_names, line_of
from taskc.analysis.phases import rings_between_roles, sent_by_bulk_copies
from taskc.dataclass import dataclass
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, equal, floor_divide, index, modulo, multiply, subtract
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import BARRIER, SHARED, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import (
    all_below,
    map_statements,
    sequence,
    statements,
    substitute,
    tensors_of,
    walk,
)
from taskc.ir.target import MATRIX_INSTRUCTIONS, WARPGROUP, is_asynchronous
from taskc.ir.types import u64
from taskc.passes.transports import Pixels, arrivals, common_loads, multicast, pixels_of, together


@dataclass(frozen=True, slots=True)
class RingBarriers:
    """The mbarriers of a ring. `empty` exists only between roles, for slots that are filled again; one of `group`
    readers arrives there.

    cluster  number of blocks that load parts of its slots for each other
    turn     if its readers take turns, the mbarrier at which they report that they have seen all of their steps
    """

    full: Tensor
    empty: Tensor | None
    arrivals: int
    readers: int
    group: int = 1
    cluster: int = 1
    turn: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (self.full, self.empty, self.turn) if t is not None]


def counted_rings(kernel: ir.Kernel) -> dict[Ring, RingBarriers]:
    """The rings that use mbarriers, with these."""
    barriers: dict[Ring, RingBarriers] = {}
    between_roles = rings_between_roles(kernel.body)
    common = _filled_for_each_other(kernel)
    for node in all_below(kernel.body, ir.RingStep):
        if node.ring in barriers:
            continue
        ring = node.ring
        if ring.transport != "tma" and ring not in between_roles:
            continue
        full = Tensor(f"{ring.name}_full", u64, (ring.stages,), BARRIER)
        if ring not in between_roles:
            barriers[ring] = RingBarriers(full, None, 1, 0)
            continue
        roles = _roles_of_steps(kernel, ring)
        producer, consumer = roles["commit"], roles["wait"]
        empty = None
        if "release" in roles:
            empty = Tensor(f"{ring.name}_empty", u64, (ring.stages,), BARRIER)
        arrivals = 1 if ring.transport == "tma" else producer.workers
        group = _readers_that_wait_together(consumer, ring)
        # Only a group that lets one worker speak for it has a worker to spare for each block.
        cluster = ir.cluster_of(kernel) if ring in common and group > 1 else 1
        readers = consumer.workers // group * cluster
        turn = None
        if any(isinstance(n, ir.RingStep) and n.operation == "enter" for n in walk(consumer.body)):
            turn = Tensor(f"{ring.name}_turn", u64, (1,), BARRIER)
        barriers[ring] = RingBarriers(full, empty, arrivals, readers, group, cluster, turn)
    return barriers


def released_by_each(kernel: ir.Kernel, between_roles: frozenset[Ring]) -> frozenset[Ring]:
    """The rings whose readers all arrive: one worker's arrival for a group tells nothing of the others."""
    return frozenset(
        ring
        for ring in between_roles
        if _readers_that_wait_together(_roles_of_steps(kernel, ring)["wait"], ring) == 1
    )


def mbarrier_bytes(kernel: ir.Kernel) -> int:
    """Bytes of a block's shared memory for mbarriers: the author's, and those that rings get."""
    counted = counted_rings(kernel).values()
    tensors = [t for c in counted for t in c.tensors]
    tensors += {
        node.tensor for node in all_below(kernel.body, ir.Allocate) if node.tensor.scope == BARRIER
    }
    return sum(size_in_bytes(tensor) for tensor in tensors)


def _filled_for_each_other(kernel: ir.Kernel) -> set[Ring]:
    """Rings with slots that are the same in all blocks of a cluster, and that are set up once."""
    common = common_loads(kernel.body, ir.cluster_of(kernel))
    if not common:
        return set()
    tensors = {n.tensor for n in walk(kernel.body) if id(n) in common and isinstance(n, ir.Move)}
    again = loops_around(kernel.body)
    rings = {node.ring for node in all_below(kernel.body, ir.RingStep)}
    return {ring for ring in rings if tensors & set(ring.tensors) and ring.tensors[-1] not in again}


def _readers_that_wait_together(consumer: ir.Role, ring: Ring) -> int:
    """The number of readers that one arrival stands for: an asynchronous product's workers, or those of one sender."""
    for node in walk(consumer.body):
        if isinstance(node, ir.Move) and not sent_by_bulk_copies(node).isdisjoint(ring.tensors):
            assert node.by is not None  # its senders: each waits until its copy has read the slot
            return consumer.workers // node.by.workers
    groups: set[int] = set()
    for node in walk(consumer.body):
        if isinstance(node, ir.Mma) and is_asynchronous(node.how):
            if any(operand.tensor in ring.tensors for operand in (node.left, node.right)):
                groups.add(MATRIX_INSTRUCTIONS[str(node.how)].group)
        elif any(tensor in ring.tensors for tensor in tensors_of(node)):
            return 1
    return groups.pop() if len(groups) == 1 else 1


def _roles_of_steps(kernel: ir.Kernel, ring: Ring) -> dict[str, ir.Role]:
    """The role that does each operation of a ring."""
    by_operation: dict[str, ir.Role] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.Roles):
            for role in node.roles:
                for step in walk(role.body):
                    if isinstance(step, ir.RingStep) and step.ring is ring:
                        by_operation[step.operation] = role
    return by_operation


def loops_around(body: Statement) -> dict[Tensor, Statement]:
    """The outermost loop around each tensor that is allocated more than once."""
    outermost: dict[Tensor, Statement] = {}

    def visit(statement: Statement, loop: Statement | None) -> None:
        if isinstance(statement, ir.Allocate) and loop is not None:
            outermost[statement.tensor] = loop
        repeats = isinstance(statement, (ir.For, ir.While))
        for inner in statements(statement):
            visit(inner, statement if loop is None and repeats else loop)

    visit(body, None)
    return outermost


def is_reused(ring: Ring, body: Statement, loop: Statement | None) -> bool:
    """Whether workers have stored other data to the memory of a ring of bulk copies before it is set up.

    What they stored has to be fenced off: bulk copies go through another proxy.
    """
    if ring.transport != "tma":
        return False
    stored = set(_stored_to(walk(loop))) if loop is not None else set()
    last = ring.tensors[-1]
    stored |= set(
        _stored_to(
            takewhile(lambda n: not (isinstance(n, ir.Allocate) and n.tensor is last), walk(body))
        )
    )
    return any(share_bytes(a, b) for a in ring.tensors for b in stored if b not in ring.tensors)


def _stored_to(nodes: Iterable[object]) -> Iterator[Tensor]:
    """The tensors written by stores and moves, without bulk copies."""
    for node in nodes:
        match node:
            case ir.Store() | ir.Atomic():
                yield node.tensor
            case ir.Move() if node.how != "tma":
                yield node.tensor
            case _:
                pass  # nothing else stores


def lower_rings(kernel: ir.Kernel) -> ir.Kernel:
    rings = counted_rings(kernel)
    lowering = _Lowering(kernel, rings)
    lower = lowering.visit if all_below(kernel.body, ir.Grid) else lowering.drained
    body = lower(kernel.body, None)
    if all_below(body, ir.Print):
        body = _printed_once(body, kernel.worker)
    return replace(kernel, body=body, stage="synchronized")


def _printed_once(statement: Statement, worker: ir.Variable) -> Statement:
    """Make prints outside of mapping loops print once for a block, now that its workers run freely."""
    match statement:
        case ir.Each():
            return statement
        case ir.Print():
            first = ir.Binary("==", worker, ir.Constant(0, worker.dtype))
            return ir.If(first, statement, loc=statement.loc)
    return map_statements(statement, lambda inner: _printed_once(inner, worker))


class _Lowering:
    def __init__(self, kernel: ir.Kernel, rings: dict[Ring, RingBarriers]) -> None:
        self.worker, self.workers = kernel.worker, kernel.workers
        self.known = facts_of_names(kernel)
        self.rank = modulo(kernel.block, ir.cluster_of(kernel))
        self.common = common_loads(kernel.body, ir.cluster_of(kernel))
        self.in_clusters = any(counted.cluster > 1 for counted in rings.values())
        self.firsts: dict[int, Expression] = {}
        self.rings = rings
        self.by_tensor = {tensor: ring for ring in rings for tensor in ring.tensors}
        loops = loops_around(kernel.body) if rings else {}
        self.again = frozenset(ring for ring in rings if ring.tensors[-1] in loops)
        self.reused = frozenset(
            ring for ring in rings if is_reused(ring, kernel.body, loops.get(ring.tensors[-1]))
        )

    def visit(self, statement: Statement, role: ir.Role | None) -> Statement:
        """Lower a statement that `role` executes; None is the whole block."""
        match statement:
            case ir.Sequence():
                return self.sequence(statement, role)
            case ir.Roles():
                roles = tuple(
                    replace(role, body=self.in_turn(self.drained(role.body, role), role))
                    for role in statement.roles
                )
                return replace(statement, roles=roles)
            case ir.Grid():
                body = self.drained(statement.body, role)
                if self.in_clusters:  # nobody ends while others arrive at its mbarriers
                    body = sequence(body, *together(statement.loc))
                return replace(statement, body=body)
            case ir.RingStep():
                return self.step(statement, role)
            case ir.Do(operation="schedule.take_turn" | "schedule.give_turn") if role is not None:
                return self.turn(statement.operation, role, statement.loc)
            case ir.Move(how="tma"):
                is_load = statement.tensor.scope == SHARED
                return (self.box_copy if is_load else self.box_store)(statement, role)
        return map_statements(statement, lambda inner: self.visit(inner, role))

    def drained(self, body: Statement, role: ir.Role | None) -> Statement:
        """A body that ends only when its bulk stores have read their sources."""
        lowered = self.visit(body, role)
        if not sent_by_bulk_copies(body) or all_below(body, ir.Roles):
            return lowered
        return sequence(lowered, ir.Do("tma.wait", (index(0),), loc=body.loc))

    def group(self, role: ir.Role) -> Expression:
        """The number of a worker's warpgroup in its role."""
        return floor_divide(subtract(self.worker, role.first), WARPGROUP)

    def turn(self, operation: str, role: ir.Role, loc: Location) -> ir.Do:
        """A step of the warpgroups' turns. The barriers have numbers from 1 on, one for each warpgroup."""
        group = self.group(role)
        if operation == "schedule.take_turn":
            return ir.Do("barrier.named", (add(group, 1), index(2 * WARPGROUP)), loc=loc)
        following = modulo(add(group, 1), role.workers // WARPGROUP)
        return ir.Do("barrier.arrive", (add(following, 1), index(2 * WARPGROUP)), loc=loc)

    def in_turn(self, body: Statement, role: ir.Role) -> Statement:
        """Add the first and the last turn, so that as many are given as are taken."""
        named = [n for n in walk(body) if isinstance(n, ir.Do) and n.operation == "barrier.named"]
        if not named:
            return body
        loc, group = named[0].loc, self.group(role)
        first = equal(group, 0)
        last = equal(group, role.workers // WARPGROUP - 1)
        return sequence(
            ir.If(last, self.turn("schedule.give_turn", role, loc), loc=loc),
            body,
            ir.If(first, self.turn("schedule.take_turn", role, loc), loc=loc),
        )

    def is_first(self, role: ir.Role | None) -> Expression:
        first = 0 if role is None else role.first
        return self.firsts.setdefault(first, equal(self.worker, first))

    def sequence(self, statement: ir.Sequence, role: ir.Role | None) -> Statement:
        """A sequence in which mbarriers are set up after the allocation of a counted ring's last tensor.

        Rings that are allocated one after another need one barrier.
        """
        parts: list[Statement] = []
        pending: list[Ring] = []
        for inner in statement.statements:
            if pending and not isinstance(inner, ir.Allocate):
                parts.extend(self.ready(pending, role))
                pending = []
            new = self.visit(inner, role)
            before = parts[-1] if parts else None
            if (
                isinstance(before, ir.If)
                and isinstance(new, ir.If)
                and before.condition is new.condition
                and new.condition is self.is_first(role)
            ):
                # Consecutive statements of one worker share a branch.
                parts[-1] = replace(before, then=sequence(before.then, new.then))
            elif (
                new is not inner
                and isinstance(new, ir.Sequence)
                and not isinstance(inner, ir.Sequence)
            ):
                parts.extend(new.statements)
            else:
                parts.append(new)
            if isinstance(inner, ir.Allocate) and inner.tensor in self.by_tensor:
                ring = self.by_tensor[inner.tensor]
                if inner.tensor is ring.tensors[-1]:
                    parts.extend(self.set_up(ring, self.rings[ring], role, inner.loc))
                    pending.append(ring)
        return replace(statement, statements=tuple(parts))

    def set_up(
        self, ring: Ring, counted: RingBarriers, role: ir.Role | None, loc: Location
    ) -> list[Statement]:
        everyone = "block" if role is None else "role"
        slot = Variable("slot", loc=loc)
        pairs = [(counted.full, counted.arrivals)]
        if counted.empty is not None:
            pairs.append((counted.empty, counted.readers))
        inits = tuple(
            ir.Do("mbarrier.init", (ir.Address(tensor, (slot,), loc=loc), index(count)), loc=loc)
            for tensor, count in pairs
        )
        (stages,) = counted.full.shape
        assert isinstance(stages, int)
        loop: Statement = ir.For(
            slot, index(0), index(stages), 1, ir.Sequence(inits), "unroll", loc=loc
        )
        if counted.turn is not None:
            first, count = (
                ir.Address(counted.turn, (ZERO,), loc=loc),
                counted.readers // counted.cluster,
            )
            loop = sequence(loop, ir.Do("mbarrier.init", (first, index(count)), loc=loc))
        ended = ir.Barrier(everyone, f"last use of {counted.full.name}, its mbarrier.init", loc=loc)
        return [
            *(ir.Allocate(tensor, loc=loc) for tensor in counted.tensors),
            *([ended] if ring in self.again and counted.empty is not None else []),
            ir.If(self.is_first(role), loop, loc=loc),
        ]

    def ready(self, rings: list[Ring], role: ir.Role | None) -> list[Statement]:
        """The statements between the set-up of rings and their first use."""
        last = rings[-1]
        loc = last.tensors[-1].loc
        full = self.rings[last].full.name
        scope = "block" if role is None else "role"
        return [
            *([ir.Do("fence.proxy.async", (), loc=loc)] if self.reused & set(rings) else []),
            *(
                together(loc)
                if any(self.rings[ring].cluster > 1 for ring in rings)
                else [ir.Barrier(scope, f"mbarrier.init of {full}, its first use", loc=loc)]
            ),
        ]

    def step(self, step: ir.RingStep, role: ir.Role | None) -> Statement:
        ring, loc = step.ring, step.loc
        counted = self.rings.get(ring)
        slot = modulo(step.step, ring.stages)
        turn = modulo(floor_divide(step.step, ring.stages), 2)
        if counted is None:
            if ring.transport != "cp.async":
                return ir.Sequence(())
            match step.operation:
                case "commit":
                    return ir.Do("cp.async.commit", (), loc=loc)
                case "wait":
                    return ir.Do("cp.async.wait", (index(ring.stages - 2),), loc=loc)
            return ir.Sequence(())
        full = ir.Address(counted.full, (slot,), loc=loc)
        match step.operation:
            case "acquire" if counted.empty is not None:
                other = ir.Binary("-", index(1), turn)
                free = ir.Address(counted.empty, (slot,), loc=loc)
                wait = ir.Do("mbarrier.wait", (free, other), loc=loc)
                if ring.transport != "tma":
                    return wait
                return ir.If(self.is_first(role), wait, loc=loc)
            case "commit" if ring.transport == "tma":
                expect = ir.Do("mbarrier.expect", (full, index(_slot_bytes(ring))), loc=loc)
                return ir.If(self.is_first(role), expect, loc=loc)
            case "commit":
                return ir.Do("mbarrier.arrive", (full,), loc=loc)
            case "wait":
                return ir.Do("mbarrier.wait", (full, turn), loc=loc)
            case "enter" if counted.turn is not None:
                # Otherwise a parity could be that of another turn's step.
                place = ir.Address(counted.turn, (ZERO,), loc=loc)
                return ir.Do("mbarrier.wait", (place, modulo(add(step.step, 1), 2)), loc=loc)
            case "release" | "leave" if counted.empty is not None:
                place = ir.Address(counted.empty, (slot,), loc=loc)
                if step.operation == "leave" and counted.turn is not None:
                    place = ir.Address(counted.turn, (ZERO,), loc=loc)
                arrive = ir.Do("mbarrier.arrive", (place,), loc=loc)
                if counted.group == 1:
                    return arrive
                first = 0 if role is None else role.first
                number = subtract(self.worker, first)
                if counted.cluster > 1 and step.operation == "release":
                    return arrivals(place, number, counted.cluster, counted.group)
                return ir.If(equal(modulo(number, counted.group), 0), arrive, loc=loc)
        return ir.Sequence(())

    def box_copy(self, move: ir.Move, role: ir.Role | None) -> Statement:
        """The copies of a load's boxes, started by one worker; elements outside the tensor arrive as zeros."""
        read = next(node for node in walk(move.value) if isinstance(node, ir.Read))
        shared = ir.Address(move.tensor, move.indices, loc=move.loc)
        distant = ir.Address(read.tensor, read.indices, loc=move.loc)
        counted = self.rings[self.by_tensor[move.tensor]]
        full = ir.Address(counted.full, (move.indices[0],), loc=move.loc)
        pixels = pixels_of(move, read, self.known)
        if pixels is None:
            loads = [
                ir.Do(
                    "tma.load",
                    (shared_part, distant_part, full, *map(index, extents)),
                    loc=move.loc,
                )
                for shared_part, distant_part, extents in _boxes(move, shared, distant)
            ]
        else:
            loads = [
                ir.Do(
                    "tma.load.pixels",
                    (
                        shared_part,
                        distant_part,
                        full,
                        *pixels.offsets,
                        *map(index, (*extents, *pixels.numbers)),
                    ),
                    loc=move.loc,
                )
                for shared_part, distant_part, extents in _pixels(move, shared, distant, pixels)
            ]
        if pixels is None and counted.cluster > 1 and id(move) in self.common:
            loads = [multicast(load, self.rank, counted.cluster) for load in loads]
        return ir.If(self.is_first(role), ir.Sequence(tuple(loads), loc=move.loc), loc=move.loc)

    def box_store(self, move: ir.Move, role: ir.Role | None) -> Statement:
        """The copies of a store's boxes; elements outside are dropped. One worker of each group sends the group's
        rows.
        """
        assert move.by is not None
        condition, senders = self.is_first(role), move.by.workers
        if senders > 1:
            first, workers = (0, self.workers) if role is None else (role.first, role.workers)
            number = subtract(self.worker, first)
            condition = equal(modulo(number, workers // senders), 0)
            move = _rows_of(floor_divide(number, workers // senders), move, senders)
        assert isinstance(move.value, ir.Read)
        shared = ir.Address(move.value.tensor, move.value.indices, loc=move.loc)
        distant = ir.Address(move.tensor, move.indices, loc=move.loc)
        stores = [
            ir.Do("tma.store", (distant_part, shared_part, *map(index, extents)), loc=move.loc)
            for shared_part, distant_part, extents in _boxes(move, shared, distant)
        ]
        commit = ir.Do("tma.commit", (), loc=move.loc)
        body = ir.Sequence((*stores, commit), loc=move.loc)
        return ir.If(condition, body, loc=move.loc)


def _rows_of(number: Expression, move: ir.Move, senders: int) -> ir.Move:
    """The part of a move that one of its senders does."""
    assert isinstance(move.value, ir.Read)
    row, rows = move.variables[0], move.shape[0] // senders
    here = {row: add(multiply(number, rows), row)}
    return replace(
        move,
        indices=tuple(substitute(i, here) for i in move.indices),
        shape=(rows, *move.shape[1:]),
        value=substitute(move.value, here),
    )


def _boxes(
    move: ir.Move, shared: ir.Address, distant: ir.Address
) -> Iterator[tuple[ir.Address, ir.Address, tuple[int, ...]]]:
    """The origins of each panel of a move in shared and in global memory, and its extents there."""
    zeros: dict[Variable, Expression] = {v: index(0) for v in move.variables}
    *outer, last = (substitute(i, zeros) for i in distant.indices)
    rows = _box(move, distant)[:-1]
    for indices, line in _panels(move, shared):
        yield (
            replace(shared, indices=indices),
            replace(distant, indices=(*outer, add(last, line.start))),
            (*rows, len(line)),
        )


def _pixels(
    move: ir.Move, shared: ir.Address, distant: ir.Address, pixels: Pixels
) -> Iterator[tuple[ir.Address, ir.Address, tuple[int, ...]]]:
    """The same for pixels; the extents are the number of pixels, and the channels of each."""
    *first, channel = pixels.first
    for indices, line in _panels(move, shared):
        yield (
            replace(shared, indices=indices),
            replace(distant, indices=(*first, add(channel, line.start))),
            (move.shape[0], len(line)),
        )


def _panels(move: ir.Move, shared: ir.Address) -> Iterator[tuple[tuple[Expression, ...], range]]:
    """The origin of each panel of a move in shared memory, and its columns."""
    zeros: dict[Variable, Expression] = {v: index(0) for v in move.variables}
    *outer, last = (substitute(i, zeros) for i in shared.indices)
    line = line_of(shared.tensor)
    assert line is not None
    for first in range(0, move.shape[-1], line):
        yield (*outer, add(last, first)), range(first, first + line)


def _box(move: ir.Move, read: ir.Address) -> tuple[int, ...]:
    """The extent of the box in each dimension of the source tensor."""
    extents: list[int] = []
    for position in read.indices:
        used = [d for d, v in enumerate(move.variables) if any(n is v for n in walk(position))]
        if len(used) > 1:
            raise InternalError("a bulk copy along a diagonal was selected")
        extents.append(move.shape[used[0]] if used else 1)
    return tuple(extents)


def _slot_bytes(ring: Ring) -> int:
    return sum(
        prod(extent for extent in tensor.shape[1:] if isinstance(extent, int)) * tensor.dtype.nbytes
        for tensor in ring.tensors
    )
