"""Asynchronous actions: how they are issued, arrive and are waited for; and mbarriers.

Every action marks what it has yet to reach in the shadow (`InFlight`). A bulk copy arrives through the *channel*
of the mbarrier, or of the ring's slot, that counts it; bulk stores and matrix products are waited for in groups
(`IssuedGroups`), as the copies of cp.async are.

Ordinary accesses to SHARED memory and those of the asynchronous proxy are ordered by fences.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from taskc.backend.operations import operands_of
from taskc.backend.sim.clusters import groups_of
from taskc.backend.sim.machine import Frame, Group
from taskc.backend.sim.memory import Array, Storage
from taskc.backend.sim.schedule import Thread, WarpWait, all_come
from taskc.backend.sim.shadow import SEVERAL, SITE_BITS, SITE_MASK, Arrivals, Lanes, workers_of
from taskc.backend.sim.statements import Code, Makers, StatementCompiler
from taskc.ir import nodes as ir
from taskc.ir.target import MOST_COUNTED

# --- Fences, between ordinary accesses to SHARED memory and those of the asynchronous proxy ------


def check_fences(
    frame: Frame, memory: Storage, at: Array, workers: Array, node: ir.Statement, what: str
) -> None:
    """Check that the writers of the elements fenced after their ordinary stores, and that these workers know it.

    What an earlier bulk copy has written needs no fence, and leaves no trace here.
    """
    shadow, order = memory.required_shadow, frame.group.order
    order.spread()
    entries = memory.all_entries(at)
    fences = frame.group.fences
    latest_of = shadow.latest_clocks(entries, order)
    if latest_of is not None:  # all writers at once; one after another only to name a late one
        writers = np.flatnonzero(latest_of >= 0)
        after = [_fence_after(fences.get(w, []), latest_of[w]) for w in writers.tolist()]
        knows = order.known[0][np.ix_(workers, writers)] >= after
        if min(after, default=0) >= 0 and (knows | (workers[:, None] == writers)).all():
            return
    for writer, mine, latest in shadow.writers(entries):
        for worker in np.arange(order.workers)[workers_of(writer & SEVERAL, order)].tolist():
            later = [c for c in fences.get(worker, ()) if c > latest]
            others = workers[workers != worker]
            if later and (order.known[0, others, worker] >= min(later)).all():
                continue
            first = int(entries[np.argmax(mine)])
            site = int(shadow.when[first]) & SITE_MASK
            name = frame.name_element(memory, first)
            whom = frame.group.name_of(worker)
            rank, number = divmod(worker, frame.run.workers)
            block = int(frame.group.units[0]) * frame.run.cluster + rank
            frame.run.findings.add(
                "missing-fence",
                f"{name} is {what}; {whom}, who wrote it, has not executed"
                " fence.proxy.async in between",
                node.loc,
                count=int(np.count_nonzero(mine)),
                details=(("block", block), ("worker", number)),
                notes=((f"{whom} writes it here", frame.run.sites[site]),),
                where=node,
            )
            return


def _fence_after(fences: list[int], clock: int) -> int:
    """A worker's first fence, in ascending order, that is later than a clock; -1 if there is none."""
    place = bisect_right(fences, clock)
    return fences[place] if place < len(fences) else -1


# --- Bulk copies: many elements, issued by one worker, that arrive through a channel -------------


def issued(frame: Frame, memory: Storage, at: Array, column: int, site: int) -> Iterator[Lanes]:
    """An access of one worker to many elements."""
    return frame.lanes(memory, (1, frame.width), at, np.full(at.shape, column), site)


class Channel:
    """The bulk copies that one mbarrier counts, or one slot of a ring."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.clock = 0  # of the latest copy
        self.flying: list[int] = []  # clocks of the copies under way

    @property
    def reached(self) -> int:
        """The clock that a wait makes known: copies of lower ones have arrived."""
        return min(self.flying, default=self.clock + 1)

    def send(
        self,
        frame: Frame,
        memory: Storage,
        at: Array,
        values: Array,
        column: int,
        site: int,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """Start a copy to these places; `arrived` is called when it has arrived."""
        self.clock = clock = frame.group.order.tick(0, self.number)
        self.flying.append(clock)
        for lanes in issued(frame, memory, at, column, site):
            memory.required_shadow.launch(lanes, clock << SITE_BITS | (self.number + 1))

        def arrive() -> None:
            memory.put(at, values)
            frame.run.changes += 1
            self.flying.remove(clock)
            arrived()

        frame.group.schedule.arrivals.append(arrive)


# --- mbarriers and named barriers ----------------------------------------------------------------


class Mbarrier:
    """One mbarrier of one block; its channel counts the bulk copies that report to it."""

    def __init__(self, name: str, channel: int) -> None:
        self.name = name
        self.channel = Channel(channel)
        self.made: tuple[int, int] = (0, 0)  # worker and clock of its setting up
        self.set_up(0)

    def set_up(self, count: int) -> None:
        self.count = self.left = count  # arrivals of each phase; 0 before it is set up
        self.bytes = self.phase = 0
        self.known: Any = None  # knowledge that waiting for the last complete phase gives
        self.arrivals = Arrivals()
        self.used: dict[int, int] = {}  # the last clock of each worker's use

    def use(self, workers: Array, stamps: Any) -> None:
        self.used.update(zip(workers.tolist(), stamps.tolist(), strict=True))

    def advance(self, workers: int) -> None:
        """Complete the phase if no arrivals or bytes are missing."""
        if self.left or self.bytes or not self.count:
            return
        if self.arrivals.known is not None:
            self.known = self.arrivals.known.copy()
            if self.channel.clock:
                place = workers + self.channel.number
                self.known[place] = max(self.known[place], self.channel.reached)
        self.phase += 1
        self.left = self.count

    @property
    def is_out_of_range(self) -> bool:
        return abs(self.bytes) > MOST_COUNTED

    def has_completed(self, parity: int) -> bool:
        return self.phase & 1 != parity & 1


def mbarriers_of(
    compiler: StatementCompiler, node: ir.Do, position: int = 0
) -> Callable[[Frame], list[tuple[Mbarrier, Array]]]:
    """A function that returns the mbarriers that the active lanes name, each with its workers."""
    address = operands_of(node).places[position]
    tensor = address.tensor
    own = compiler.run.peers.get(tensor, tensor)
    place = compiler.accesses.place(tensor, address.indices, node)

    def barriers(frame: Frame) -> list[tuple[Mbarrier, Array]]:
        at, illegal = place(frame)
        active = frame.active[0]
        if illegal is not None:
            active = active & ~np.broadcast_to(illegal, (1, frame.width))[0]
        numbers = np.broadcast_to(at, (1, frame.width))[0]
        return [
            (_mbarrier(group, own, number), frame.worker_row[mine & (numbers == number)])
            for group, mine in groups_of(frame, tensor, active, node)
            for number in np.unique(numbers[mine]).tolist()
        ]

    return barriers


def _mbarrier(group: Group, tensor: ir.Tensor, number: int) -> Mbarrier:
    key = (tensor, number)
    if key not in group.mbarriers:
        channel = group.first_channel + group.run.channels[tensor] + number
        whose = f" of block {group.blocks[0]}" if group.cluster else ""
        group.mbarriers[key] = Mbarrier(f"{tensor.name}[{number}]{whose}", channel)
    barrier: Mbarrier = group.mbarriers[key]
    return barrier


def counterpart(barrier: Mbarrier, mine: Group, group: Group) -> Mbarrier:
    """The mbarrier of another block that corresponds to this block's."""
    key = next(key for key, known in mine.mbarriers.items() if known is barrier)
    return _mbarrier(group, *key)


def is_set_up(frame: Frame, barrier: Mbarrier, workers: Array, node: ir.Do) -> bool:
    """Whether an mbarrier has been set up; reports that it has not, or that these workers may not know."""
    worker, clock = barrier.made
    order = frame.group.order
    others = workers != worker
    if not barrier.count:
        message = f"{barrier.name} has not been set up"
        frame.fault("uninitialized", message, frame.only(workers), node)
    elif others.any() and (
        order.uniform or (others & (order.known[0, workers, worker] <= clock)).any()
    ):
        message = f"{barrier.name} is used, and nothing orders that after its setting up"
        frame.fault("race", message, frame.only(workers), node)
    return bool(barrier.count)


def _init(compiler: StatementCompiler, node: ir.Do) -> Code:
    barriers = mbarriers_of(compiler, node)
    count = compiler.expressions(node.operands[1])

    def run(frame: Frame) -> None:
        order = frame.group.order
        for barrier, workers in barriers(frame):
            worker = int(workers[0])
            if len(workers) > 1:
                message = f"{len(workers)} workers set up {barrier.name}; one is to"
                frame.fault("several-issuers", message, frame.only(workers), node)
            order.spread()
            _check_unused(frame, barrier, worker, node)
            barrier.made = (worker, int(order.stamp(0, workers[:1])[0]))
            barrier.set_up(int(np.max(count(frame))))

    return Code(run)


def _check_unused(frame: Frame, barrier: Mbarrier, worker: int, node: ir.Do) -> None:
    """Check that setting the mbarrier up again is ordered after every earlier use of it."""
    known = frame.group.order.known[0, worker]
    unknown = [w for w, clock in barrier.used.items() if w != worker and known[w] <= clock]
    who = f"its use by {frame.group.name_of(min(unknown))}" if unknown else ""
    if barrier.channel.flying:
        who = "the arrival of a bulk copy that it counts"
    if who:
        message = f"{barrier.name} is set up again, and nothing orders that after {who}"
        frame.fault("race", message, frame.only(worker), node)


def _arrive(compiler: StatementCompiler, node: ir.Do) -> Code:
    barriers = mbarriers_of(compiler, node)
    expects = node.operation == "mbarrier.expect"
    count = compiler.expressions(node.operands[1]) if expects else None
    releases = node.operation == "mbarrier.release"
    condition = compiler.expressions(node.operands[1]) if releases else None

    def run(frame: Frame) -> None:
        order = frame.group.order
        for barrier, workers in barriers(frame):
            if condition is not None:
                holds = np.broadcast_to(condition(frame), (1, frame.width))[0]
                workers = workers[np.isin(workers, frame.worker_row[holds])]
            if not len(workers) or not is_set_up(frame, barrier, workers, node):
                continue
            if count is not None:
                _expect(frame, barrier, workers, int(np.max(count(frame))), node)
            if len(workers) > barrier.left:
                message = f"{barrier.name} expects {barrier.left} more arrivals in this phase"
                frame.fault("over-arrival", message, frame.only(workers), node)
                workers = workers[: barrier.left]
            if len(workers):
                order.spread()
                barrier.use(workers, order.stamp(0, workers))
                barrier.arrivals.come(order, workers)
                barrier.left -= len(workers)
                barrier.advance(order.workers)

    return Code(run)


def _expect(frame: Frame, barrier: Mbarrier, workers: Array, count: int, node: ir.Do) -> None:
    barrier.bytes += count * len(workers)
    message = ""
    if not 0 <= count <= MOST_COUNTED:
        message = f"{count} bytes are expected at {barrier.name}; there may be 0 to {MOST_COUNTED}"
    elif barrier.is_out_of_range:
        message = (
            f"{barrier.bytes} bytes are missing at {barrier.name}, which counts to {MOST_COUNTED}"
        )
    if message:
        frame.fault("out-of-range", message, frame.only(workers), node)


def _wait(compiler: StatementCompiler, node: ir.Do) -> Code:
    barriers = mbarriers_of(compiler, node)
    parity = compiler.expressions(node.operands[1])

    def steps(frame: Frame) -> Thread:
        order = frame.group.order
        for barrier, workers in barriers(frame):
            if not is_set_up(frame, barrier, workers, node):
                continue
            turn = int(np.max(parity(frame)))

            def ready(barrier: Mbarrier = barrier, turn: int = turn) -> bool:
                return barrier.has_completed(turn)

            if not ready():
                missing = f"{barrier.left} arrivals and {barrier.bytes} bytes are missing"
                if barrier.bytes < 0:
                    missing = f"{-barrier.bytes} bytes have come that nobody expected"
                what = f"{barrier.name} to complete its phase of parity {turn} ({missing})"
                yield WarpWait(ready, what, node.loc)
            if barrier.known is not None:
                order.acquire(0, workers, barrier.known)
            order.spread()
            barrier.use(workers, order.stamp(0, workers))

    return Code(steps, waits=True)


def _named(compiler: StatementCompiler, node: ir.Do) -> Code:
    """A named barrier, where workers wait for each other, or only come."""
    numbers, (count,) = compiler.expressions(node.operands[0]), operands_of(node).numbers[-1:]
    waits = node.operation == "barrier.named"

    def steps(frame: Frame) -> Thread:
        all_come(frame, slice(0, frame.width), node, "warp")
        number = int(np.max(numbers(frame)))
        what = f"barrier {number} among {count} workers"
        key = ("named", number, frame.group.base)
        meet = frame.group.schedule.meet
        yield from meet(key, count, frame, node, what, is_named=True, waits=waits)

    return Code(steps, waits=True)


MBARRIERS: Makers = {
    "mbarrier.init": _init,
    "mbarrier.arrive": _arrive,
    "mbarrier.expect": _arrive,
    "mbarrier.release": _arrive,
    "mbarrier.wait": _wait,
    "barrier.named": _named,
    "barrier.arrive": _named,
}
