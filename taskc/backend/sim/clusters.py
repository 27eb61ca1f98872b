"""Warps that run by themselves, in units: a unit is a block, or the blocks of a cluster.

Units run one after another. Where the program has barriers of the grid, each runs until all its warps have come to
one, and goes on when all units have. The blocks of a cluster wait for each other and access each other's memory.

The blocks of a cluster share one order, in which their workers are numbered one block after another,
and the arrays of their SHARED memories, so that a race between blocks is one as any other.

A block's memory may only be reached after it has begun and before it has ended: who reaches it knows
of something that a worker of it did, and some worker of it knows of the access when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from taskc.backend.operations import operands_of
from taskc.backend.sim.accesses import Watch
from taskc.backend.sim.machine import Frame, Group, Run
from taskc.backend.sim.memory import Array, SharedArena, Storage, shared_memory
from taskc.backend.sim.recording import legal
from taskc.backend.sim.report import Located
from taskc.backend.sim.schedule import Thread, WarpSchedule, WarpWait, all_come
from taskc.backend.sim.shadow import Arrivals, Order, join_all
from taskc.backend.sim.statements import Code, Makers, StatementCompiler
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.target import WARP


class Cluster:
    """The shared state of the blocks of one cluster."""

    def __init__(self, run: Run, order: Order, arena: SharedArena | None) -> None:
        self.run = run
        self.order = order
        self.arena = arena
        self.groups: list[Group] = []
        self.memories: dict[ir.Tensor, Storage] = {}
        # The last clock of each worker's access to a block's tensor.
        self.reached: dict[tuple[int, Location, str], Array] = {}
        self.copies: list[tuple[Group, Any, int, str, Location]] = []
        # The barrier: its phase, the arrivals of each, and the phase of each worker's, until it has waited.
        self.phase = 0
        self.arrivals = [Arrivals()]
        self.came = np.full(order.workers, -1)

    def admit(self, groups: list[Group]) -> None:
        self.groups = groups
        for group in groups:
            group.fences = groups[0].fences

    def shared(self, tensor: ir.Tensor, shape: tuple[int, ...]) -> Storage:
        """A SHARED tensor of all blocks of the cluster, one row for each block."""
        memory = self.memories.get(tensor)
        if memory is None:
            count = self.run.cluster
            number = len(self.memories) + 1
            if self.arena is not None and tensor.offset is not None:
                memory = self.arena.place(tensor, shape, number)
                memory.stride = self.arena.size // tensor.dtype.nbytes
            else:
                memory = shared_memory(tensor, shape, count, self.order.agents, number)
                memory.stride = max(memory.size, 1)
            self.memories[tensor] = memory
        return memory

    # Access to other blocks.

    def workers_of(self, group: Group) -> slice:
        return slice(group.base, group.base + self.run.workers)

    def check_begun(self, group: Group, frame: Frame, mine: Array, name: str, node: Any) -> None:
        """Check that these workers know that the block has begun."""
        self.order.spread()
        known = self.order.known[0, frame.worker_row, self.workers_of(group)].max(axis=1)
        wrong = mine & (known <= 1)
        if wrong.any():
            message = f"{name} of block {group.blocks[0]} is reached, which may not have begun"
            frame.fault("unstarted-peer", message, wrong[None], node)

    def reach(self, group: Group, frame: Frame, mine: Array, name: str, node: Any) -> None:
        """Note an access of these workers to the memory of another block."""
        self.check_begun(group, frame, mine, name, node)
        key = (group.rank, node.loc, name)
        clocks = self.reached.setdefault(key, np.zeros(self.order.workers, np.int64))
        workers = frame.worker_row[mine]
        clocks[workers] = self.order.stamp(0, workers)

    def sent(self, group: Group, barrier: Any, name: str, node: Any) -> None:
        """Note a bulk copy that is under way to another block."""
        self.copies.append((group, barrier, barrier.channel.clock, name, node.loc))

    def end(self, finished: bool) -> None:
        """End the blocks, after the last one or in a deadlock. Copies under way then arrive without a receiver."""
        for arrive in self.groups[0].schedule.arrivals:
            arrive()
        unexpected: set[int] = set()
        for group, barrier, _, _, loc in self.copies:
            if barrier.bytes < 0 and id(barrier) not in unexpected:
                unexpected.add(id(barrier))
                message = f"{-barrier.bytes} bytes come to {barrier.name} that nobody expects there"
                group.report("unexpected-bytes", message, loc, barrier)
        if not finished:
            return
        self.order.spread()
        for group, barrier, clock, name, loc in self.copies:
            channel = self.order.workers + barrier.channel.number
            known = self.order.known[0, self.workers_of(group), channel].max()
            if known <= clock and id(barrier) not in unexpected:
                self._ended(group, f"a bulk copy into its {name} has arrived", loc)
        for (rank, loc, name), clocks in self.reached.items():
            group = self.groups[rank]
            known = self.order.known[0, self.workers_of(group), : self.order.workers].max(axis=0)
            late = np.flatnonzero((clocks > 0) & (known <= clocks))
            if late.size:
                who = group.name_of(int(late[0]))
                self._ended(group, f"{who} reaches its {name}", loc)

    def _ended(self, group: Group, what: str, loc: Location) -> None:
        message = f"block {group.blocks[0]} may have ended before {what}"
        group.report("ended-peer", message, loc, what)


def _peer(compiler: StatementCompiler, node: ir.Peer) -> Code:
    rank = compiler.expressions.index(node.rank)
    tensor, of = node.tensor, node.of
    count, shape = compiler.run.cluster, compiler.run.shapes[of]

    def run(frame: Frame) -> None:
        ranks = np.broadcast_to(rank(frame), frame.full)
        wrong = (ranks < 0) | (ranks >= count)
        if wrong.any():
            message = f"the rank {{}} is outside 0..{count - 1}, those of the cluster"
            frame.fault_if("out-of-bounds", message, wrong, node, ranks)
            ranks = np.where(wrong, frame.group.rank, ranks)
        frame.ranks[tensor] = ranks
        if tensor.scope == ir.SHARED:
            memory = frame.group.cluster.shared(of, shape)
            frame.memories[tensor] = memory.seen_from(memory.rows[ranks, 0])

    return Code(run)


def watch_peer(tensor: ir.Tensor, node: Located) -> Watch:
    """A function that checks each access to another block's memory."""

    def watch(frame: Frame, memory: Storage, at: Any, illegal: Any, is_write: bool) -> None:
        active = legal(frame.active, illegal)
        ranks = np.where(active, frame.ranks[tensor], -1).reshape(-1, frame.width)
        for group in frame.group.cluster.groups:
            mine = (ranks == group.rank).any(axis=0)
            if group is not frame.group and mine.any():
                group.cluster.reach(group, frame, mine, memory.tensor.name, node)

    return watch


def _arrive(compiler: StatementCompiler, node: ir.Do) -> Code:
    def run(frame: Frame) -> None:
        all_come(frame, slice(0, frame.width), node, "cluster")
        cluster: Cluster = frame.group.cluster
        active = frame.active[0]
        again = active & (cluster.came[frame.worker_row] >= 0)
        if again.any():
            message = "a worker comes to the barrier of the cluster twice, without waiting"
            frame.fault("over-arrival", message, again[None], node)
        workers = frame.worker_row[active & ~again]
        if not workers.size:
            return
        arrivals = cluster.arrivals[cluster.phase]
        arrivals.come(cluster.order, workers)
        cluster.came[workers] = cluster.phase
        if arrivals.count == cluster.order.workers:
            cluster.phase += 1
            cluster.arrivals.append(Arrivals())

    return Code(run)


def _wait(compiler: StatementCompiler, node: ir.Do) -> Code:
    def steps(frame: Frame) -> Thread:
        cluster: Cluster = frame.group.cluster
        active = frame.active[0]
        strange = active & (cluster.came[frame.worker_row] < 0)
        if strange.any():
            message = "a worker waits for the barrier of the cluster, and has not come to it"
            frame.fault("barrier-divergence", message, strange[None], node)
        workers = frame.worker_row[active & ~strange]
        if not workers.size:
            return
        phase = int(cluster.came[workers].max())
        if cluster.phase <= phase:
            what = "the barrier of the cluster"
            yield WarpWait(lambda: cluster.phase > phase, what, node.loc, is_barrier=True)
        cluster.order.acquire(0, workers, cluster.arrivals[phase].known)
        cluster.came[workers] = -1

    return Code(steps, waits=True)


def groups_of(
    frame: Frame, tensor: ir.Tensor, active: Array, node: Any
) -> list[tuple[Group, Array]]:
    """The blocks whose mbarriers the active workers name, each with the workers that name it."""
    if tensor not in frame.ranks:
        return [(frame.group, active)]
    ranks = np.broadcast_to(frame.ranks[tensor], (1, frame.width))[0]
    named = []
    for group in frame.group.cluster.groups:
        mine = active & (ranks == group.rank)
        if mine.any():
            if group is not frame.group:
                name = frame.run.peers[tensor].name
                group.cluster.reach(group, frame, mine, name, node)
            named.append((group, mine))
    return named


def destinations(frame: Frame, column: int, mask: int, node: ir.Do) -> list[Group]:
    """The blocks that a multicast goes to, from the mask of their ranks."""
    cluster: Cluster = frame.group.cluster
    count = frame.run.cluster
    issuer = np.arange(frame.width) == column
    if not 0 < mask < 1 << count:
        message = f"the mask {{}} names no block, or others than the {count} of the cluster"
        frame.fault("out-of-bounds", message, issuer[None], node, np.asarray(mask))
    targets = [group for group in cluster.groups if mask >> group.rank & 1]
    name = operands_of(node).places[0].tensor.name
    for group in targets:
        if group is not frame.group:
            cluster.check_begun(group, frame, issuer, name, node)
    return targets


CLUSTERS: Makers = {ir.Peer: _peer, "cluster.arrive": _arrive, "cluster.wait": _wait}


# --- Units ----------------------------------------------------------------------------------------


class Unit:
    """Blocks that share one order and one schedule."""

    def __init__(
        self,
        run: Run,
        number: int,
        order: Order,
        arena: SharedArena | None,
        seed: int | None,
    ) -> None:
        size = run.cluster
        self.order = order
        self.cluster = Cluster(run, order, arena) if size > 1 else None
        self.groups = [
            Group(run, np.array([number * size + rank]), arena, order, rank, self.cluster)
            for rank in range(size)
        ]
        if self.cluster is not None:
            self.cluster.admit(self.groups)
        self.schedule = WarpSchedule(
            self.groups[0], None if seed is None else seed * 1_000_003 + number
        )
        for group in self.groups:
            group.schedule = self.schedule

    def begin(self, bound: dict[ir.Variable, Any], warps: Sequence[Array], code: Code) -> None:
        frames: list[Frame] = []
        for group in self.groups:
            everyone = slice(group.base, group.base + group.run.workers)
            for workers in warps:
                frame = Frame(group, group.base + workers, everyone, len(frames))
                frame.bind(bound)
                frames.append(frame)
        self.schedule.begin(frames, code.steps)

    def go_on(self) -> bool:
        """Run until it ends, or waits for other units; False in a deadlock."""
        is_able = self.schedule.go_on()
        if is_able and self.schedule.threads:
            return True
        if self.cluster is not None:
            self.cluster.end(is_able)
        if is_able:
            for group in self.groups:
                _report_unfinished(group)
        return is_able


def execute_by_warps(
    run: Run,
    code: Code,
    count: int,
    *,
    nodes: Sequence[object],
    bound: dict[ir.Variable, Any],
    channels: int,
    arena: Callable[[int], SharedArena | None],
    seed: int | None,
    on_blocks: Callable[[int, int], None],
) -> None:
    """Run all blocks.

    nodes     of the program
    channels  those of one block
    arena     the shared memory of so many blocks
    """
    size = run.cluster
    if count % size:
        raise CompileError(f"{count} blocks aren't a multiple of a cluster's {size}")
    warps = _warps(run, nodes)
    agent_of = np.repeat(np.arange(len(warps) * size), [len(warp) for warp in warps] * size)

    def units() -> Iterator[Unit]:
        for number in range(count // size):
            order = Order(1, size * run.workers, False, agent_of, channels * size, size)
            unit = Unit(run, number, order, arena(size), seed)
            unit.begin(bound, warps, code)
            yield unit

    if not run.waits_for_grid:
        for number, unit in enumerate(units(), start=1):
            if not unit.go_on():
                run.aborted = True
                return
            on_blocks(number * size, count)
        return
    together = list(units())
    while together:
        if not _all_go_on(run, together):
            run.aborted = True
            return
        waiting = [unit for unit in together if unit.schedule.threads]
        if waiting and _diverges(waiting, len(together)):
            run.aborted = True
            return
        join_all([unit.order for unit in waiting])
        run.grid_barriers += 1
        together = waiting


def _all_go_on(run: Run, together: list[Unit]) -> bool:
    """Run each unit until it ends or reaches a barrier of the grid; units that wait for updates take turns."""
    pending = together
    while pending:
        before = run.changes
        if not all(unit.go_on() for unit in pending):
            return False
        pending = [unit for unit in pending if unit.schedule.spins]
        if pending and run.changes == before:
            pending[0].schedule.report_stuck()
            return False
    return True


def _diverges(waiting: list[Unit], count: int) -> bool:
    """Report that only some units have reached a barrier of the grid, or that they reached different ones."""
    first = waiting[0]
    others = [
        unit for unit in waiting if unit.schedule.grid_barrier is not first.schedule.grid_barrier
    ]
    if len(waiting) == count and not others:
        return False
    site = first.schedule.grid_barrier
    assert site is not None
    why = "others come to another one" if others else "others have ended"
    notes = tuple(
        ("the other barrier is here", unit.schedule.grid_barrier.loc)
        for unit in others[:1]
        if unit.schedule.grid_barrier is not None
    )
    message = f"some blocks come to this barrier of the grid, but {why}"
    first.groups[0].report("barrier-divergence", message, site.loc, site, notes)
    return True


def _warps(run: Run, nodes: Sequence[object]) -> list[Array]:
    """The workers of each warp of a block; roles cut warps short."""
    cuts = {0, run.workers}
    for node in nodes:
        if isinstance(node, ir.Roles):
            for role in node.roles:
                cuts |= {role.first, role.first + role.workers}
    return [
        np.arange(first, min(first + WARP, stop))
        for start, stop in pairwise(sorted(cuts))
        for first in range(start, stop, WARP)
    ]


def _report_unfinished(group: Group) -> None:
    """Report matrix products and bulk stores that nobody has waited for when the block ends."""
    for products in group.products.values():
        for product in products.left:
            why = ", in no group: nothing commits it" if product in products.open else ""
            message = f"the block ends while a matrix product is in flight{why}"
            group.report("unwaited-product", message, product.loc, product.loc)
    for stores in group.outgoing.values():
        for memory, _, _, loc in stores.left:
            message = f"the block ends while a bulk store still reads {memory.tensor.name}"
            group.report("unwaited-copy", message, loc, memory)
