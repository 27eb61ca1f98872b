"""Clusters: blocks that run at the same time, wait for each other and access each other's memory.

The blocks of a cluster share one order, in which their workers are numbered one block after another,
and the arrays of their SHARED memories, so that a race between blocks is one as any other.

A block's memory may only be reached after it has begun and before it has ended: who reaches it knows
of something that a worker of it did, and some worker of it knows of the access when the block ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.accesses import Watch
from taskc.backend.sim.machine import Frame, Group, Run, active_columns
from taskc.backend.sim.memory import Arena, Array, Memory, shared_memory
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.report import Located
from taskc.backend.sim.schedule import Thread, Wait
from taskc.backend.sim.shadow import Order
from taskc.backend.sim.statements import Code
from taskc.backend.sim.synchronization import all_come
from taskc.errors import Location
from taskc.ir import nodes as ir


class Cluster:
    """The shared state of the blocks of one cluster."""

    def __init__(self, run: Run, order: Order, arena: Arena | None) -> None:
        self.run = run
        self.order = order
        self.arena = arena
        self.groups: list[Group] = []
        self.memories: dict[ir.Tensor, Memory] = {}
        self.reached: dict[
            tuple[int, Location, str], Array
        ] = {}  # the last clock of each worker's access
        self.copies: list[tuple[Group, Any, int, str, Location]] = []
        # The barrier: its phase, the number of arrivals, and what the arrivals of each phase knew.
        self.phase = 0
        self.count = 0
        self.came = np.full(
            order.workers, -1
        )  # the phase of each worker's arrival, until it has waited
        self.collected: dict[int, Array] = {}

    def admit(self, groups: list[Group]) -> None:
        self.groups = groups
        for group in groups:
            group.fences = groups[0].fences

    def shared(self, tensor: ir.Tensor, shape: tuple[int, ...]) -> Memory:
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
        self.copies.append((group, barrier, barrier.clock, name, node.loc))

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
            channel = self.order.workers + barrier.channel
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


class Clusters:
    """The statements and operations that only clusters have."""

    def __init__(self, operations: Operations) -> None:
        self.expressions = operations.expressions
        self.run = operations.run
        self.rings = operations.accesses.watch
        operations.accesses.watch = self.watch
        operations.statements.makers[ir.Peer] = self.peer
        operations.makers["cluster.arrive"] = self.arrive
        operations.makers["cluster.wait"] = self.wait

    def peer(self, node: ir.Peer) -> Code:
        rank = self.expressions.index(node.rank)
        tensor, of = node.tensor, node.of
        count = self.run.cluster

        def run(frame: Frame) -> None:
            ranks = np.broadcast_to(rank(frame), frame.full)
            wrong = (ranks < 0) | (ranks >= count)
            if wrong.any():
                message = f"the rank {{}} is outside 0..{count - 1}, those of the cluster"
                frame.fault_if("out-of-bounds", message, wrong, node, ranks)
                ranks = np.where(wrong, frame.group.rank, ranks)
            frame.ranks[tensor] = ranks
            if tensor.scope == ir.SHARED:
                memory = frame.group.cluster.shared(of, self.run.shapes[of])
                frame.memories[tensor] = memory.seen_from(memory.rows[ranks, 0])

        return Code(run)

    def watch(self, tensor: ir.Tensor, node: Located) -> Watch | None:
        """A function that checks each access to another block's memory."""
        if tensor not in self.run.peers:
            return self.rings(tensor, node)

        def watch(frame: Frame, memory: Memory, at: Any, illegal: Any, is_write: bool) -> None:
            active = np.ones(frame.full, np.bool_)
            if frame.mask is not None:
                active &= frame.mask
            if illegal is not None:
                active &= ~illegal
            ranks = np.where(active, frame.ranks[tensor], -1).reshape(-1, frame.width)
            for group in frame.group.cluster.groups:
                mine = (ranks == group.rank).any(axis=0)
                if group is not frame.group and mine.any():
                    group.cluster.reach(group, frame, mine, memory.tensor.name, node)

        return watch

    # The barrier.

    def arrive(self, node: ir.Do) -> Code:
        def run(frame: Frame) -> None:
            all_come(frame, slice(0, frame.width), node, "cluster")
            cluster: Cluster = frame.group.cluster
            active = active_columns(frame)
            again = active & (cluster.came[frame.worker_row] >= 0)
            if again.any():
                message = "a worker comes to the barrier of the cluster twice, without waiting"
                frame.fault("over-arrival", message, again[None], node)
            workers = frame.worker_row[active & ~again]
            if not workers.size:
                return
            known = cluster.order.release(0, workers)
            before = cluster.collected.get(cluster.phase)
            cluster.collected[cluster.phase] = (
                known if before is None else np.maximum(before, known)
            )
            cluster.came[workers] = cluster.phase
            cluster.count += workers.size
            if cluster.count == cluster.order.workers:
                cluster.phase += 1
                cluster.count = 0

        return Code(run)

    def wait(self, node: ir.Do) -> Code:
        def steps(frame: Frame) -> Thread:
            cluster: Cluster = frame.group.cluster
            active = active_columns(frame)
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
                yield Wait(lambda: cluster.phase > phase, what, node.loc, is_barrier=True)
            cluster.order.acquire(0, workers, cluster.collected[phase])
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
