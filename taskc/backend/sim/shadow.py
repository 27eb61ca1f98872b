"""Races: who touched each element last, and what happened before what.

A *worker's clock* ticks where it releases what it did: at a phase's end, at a barrier, at an arrival.
The workers of one warp share a clock (an *agent*); what each worker knows of each agent's clock is
what is ordered before it. Two accesses to an element by different workers, one of them a write that
is not atomic, race unless the later one knows the earlier one's clock. Different blocks know nothing
of each other. This is FastTrack (Flanagan and Freund, 2009) on arrays: one write stamp an element,
one read stamp an element and agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

SITE_BITS = 20
SITE_MASK = (1 << SITE_BITS) - 1
WORKER_BITS = 24
SEVERAL = (1 << WORKER_BITS) - 1  # the number that stands for more than one worker
WARP = 32

Found: TypeAlias = "tuple[int, int, int, int, int]"
"""A race: (element, this one's who, the other's who, the other's site, how many)."""


class Order:
    """What each worker of a group of blocks knows of the others.

    While all clocks are equal, as they are without warp barriers and mbarriers, `now` and `floor`
    are the whole truth; after that `clock`, `floors` and `known` are.
    """

    def __init__(self, blocks: int, workers: int, by_phases: bool) -> None:
        self.blocks = blocks
        self.workers = workers
        self.agent_size = max(workers, 1) if by_phases else WARP
        self.agents = -(-workers // self.agent_size)
        self.now = 1
        self.floor = 1
        self.uniform = True
        self.clock: Array = np.zeros((0, 0), np.int64)
        self.floors: Array = np.zeros(0, np.int64)
        self.known: Array = np.zeros((0, 0, 0), np.int64)

    def step(self) -> None:
        """All that follows is ordered after all that was."""
        if self.uniform:
            self.now += 1
            self.floor = self.now
        else:
            self.join_blocks(np.arange(self.blocks))

    def spread(self) -> None:
        if self.uniform:
            self.uniform = False
            self.clock = np.full((self.blocks, self.agents), self.now, np.int64)
            self.floors = np.full(self.blocks, self.floor, np.int64)
            self.known = np.full((self.blocks, self.workers, self.agents), self.floor, np.int64)

    def join_blocks(self, blocks: Array) -> None:
        """A barrier of all workers of some blocks."""
        self.spread()
        latest = self.clock[blocks].max(axis=1, initial=0) + 1
        self.clock[blocks] = latest[:, None]
        self.floors[blocks] = latest
        self.known[blocks] = latest[:, None, None]

    def join_workers(self, block: int, workers: Array) -> None:
        """A barrier of some workers, whole warps of them, of one block."""
        self.spread()
        agents = np.unique(workers // self.agent_size)
        self.clock[block, agents] += 1
        known = self.known[block, workers].max(axis=0)
        known[agents] = np.maximum(known[agents], self.clock[block, agents])
        self.known[block, workers] = known

    def release(self, block: int, workers: Array) -> Array:
        """What those who acquire the result know: all that `workers` did or knew."""
        self.spread()
        agents = np.unique(workers // self.agent_size)
        known = self.known[block, workers].max(axis=0)
        for agent in agents.tolist():
            first = agent * self.agent_size
            last = min(first + self.agent_size, self.workers)
            if np.count_nonzero(workers // self.agent_size == agent) == last - first:
                self.clock[block, agent] += 1
                known[agent] = self.clock[block, agent]
        return known

    def acquire(self, block: int, workers: Array, known: Array) -> None:
        self.spread()
        self.known[block, workers] = np.maximum(self.known[block, workers], known)

    def stamp(self, block: Any, worker: Any) -> Any:
        if self.uniform:
            return self.now
        return self.clock[block, worker // self.agent_size]

    def lowest(self, block: Any) -> Any:
        return self.floor if self.uniform else self.floors[block]

    def knows(self, block: Array, worker: Array, agent: Array, clock: Array) -> Array:
        """Whether `worker` comes after what `agent` did at `clock`; -1 stands for all of them."""
        if self.uniform:
            return np.asarray(clock < self.floor)
        known = self.known[block, worker, agent]
        for i in np.flatnonzero((worker < 0) | (agent < 0)).tolist():
            row = self.known[block[i]]
            row = row if worker[i] < 0 else row[worker[i] : worker[i] + 1]
            column = row if agent[i] < 0 else row[:, agent[i]]
            known[i] = column.min()
        return np.asarray(known > clock)


class Lanes:
    """Some workers' access to some elements, one entry for each."""

    __slots__ = ("agent", "at", "block", "floor", "order", "stamp", "who", "worker")

    def __init__(
        self, order: Order, at: Array, block: Any, worker: Any, identity: Any, site: int
    ) -> None:
        """`block` counts within the group; `worker` is -1 for all; `identity` is global."""
        self.order = order
        self.at = at
        self.block = block
        self.worker = worker
        self.who = identity
        self.stamp = order.stamp(block, np.maximum(worker, 0)) << SITE_BITS | site
        self.floor = order.lowest(block)
        self.agent = worker // order.agent_size  # -1 stays -1


class Touches:
    """The last accesses of one kind, reads or atomics, that may be several workers' at a time."""

    def __init__(self, size: int, agents: int, is_global: bool) -> None:
        self.when = np.zeros((agents, size), np.int64)
        self.who = np.zeros((agents, size), np.int64)
        self.block = np.full(size, -1, np.int64) if is_global else None  # -2: several
        self.latest = 0

    def record(self, lanes: Lanes) -> None:
        size = self.when.shape[1]
        if np.ndim(lanes.worker) == 0 and lanes.worker < 0:
            for agent in range(len(self.when)):
                stamp = lanes.stamp
                if not lanes.order.uniform:
                    clock = lanes.order.clock[lanes.block, agent] << SITE_BITS
                    stamp = clock | (stamp & SITE_MASK)
                self.when[agent, lanes.at] = stamp
                self.who[agent, lanes.at] = lanes.who
        else:
            at = lanes.at if len(self.when) == 1 else lanes.at + lanes.agent * size
            when, who = self.when.reshape(-1), self.who.reshape(-1)
            old = who[at]
            shared = (when[at] >> SITE_BITS == lanes.stamp >> SITE_BITS) & (old != lanes.who)
            when[at] = lanes.stamp
            who[at] = lanes.who
            shared |= who[at] != lanes.who
            if shared.any():
                who[at[shared]] = (lanes.who | SEVERAL)[shared]
        self.latest = max(self.latest, int(np.max(lanes.stamp)) >> SITE_BITS)
        if self.block is not None:
            here = np.broadcast_to(lanes.who >> WORKER_BITS, lanes.at.shape)
            before = self.block[lanes.at]
            self.block[lanes.at] = here
            others = ((before != -1) & (before != here)) | (self.block[lanes.at] != here)
            self.block[lanes.at[others]] = -2

    def conflicts(self, lanes: Lanes) -> Found | None:
        if self.block is None and self.latest < np.min(lanes.floor):
            return None
        for agent in range(len(self.when)):
            found = _conflict(lanes, self.when[agent], self.who[agent], agent, self.block)
            if found is not None:
                return found
        return None


class Shadow:
    """The last accesses to each element of one memory."""

    __slots__ = ("agents", "atomics", "is_global", "latest", "reads", "size", "when", "who")

    def __init__(self, size: int, agents: int, is_global: bool) -> None:
        self.size = size
        self.agents = agents
        self.is_global = is_global
        self.when = np.zeros(size, np.int64)
        self.who = np.zeros(size, np.int64)
        self.latest = 0
        self.reads: Touches | None = None
        self.atomics: Touches | None = None

    def read(self, lanes: Lanes, report: Callable[[str, str, Found], None]) -> None:
        self._against_writes(lanes, "reads", report)
        if self.atomics is not None:
            found = self.atomics.conflicts(lanes)
            if found is not None:
                report("reads", "updates", found)
        if self.reads is None:
            self.reads = Touches(self.size, self.agents, self.is_global)
        self.reads.record(lanes)

    def atomic(self, lanes: Lanes, report: Callable[[str, str, Found], None]) -> None:
        self._against_writes(lanes, "updates", report)
        if self.reads is not None:
            found = self.reads.conflicts(lanes)
            if found is not None:
                report("updates", "reads", found)
        if self.atomics is None:
            self.atomics = Touches(self.size, self.agents, self.is_global)
        self.atomics.record(lanes)

    def write(self, lanes: Lanes, report: Callable[[str, str, Found], None]) -> None:
        self._against_writes(lanes, "writes", report)
        for touches, verb in ((self.reads, "reads"), (self.atomics, "updates")):
            if touches is not None:
                found = touches.conflicts(lanes)
                if found is not None:
                    report("writes", verb, found)
        self.when[lanes.at] = lanes.stamp
        self.who[lanes.at] = lanes.who
        self.latest = max(self.latest, int(np.max(lanes.stamp)) >> SITE_BITS)
        back = self.who[lanes.at]
        twice = np.flatnonzero(back != lanes.who)
        if twice.size:
            first = twice[0]
            who = np.broadcast_to(lanes.who, back.shape)
            site = int(np.max(lanes.stamp)) & SITE_MASK
            at = int(lanes.at[first])
            report("writes", "writes", (at, int(who[first]), int(back[first]), site, twice.size))

    def _against_writes(
        self, lanes: Lanes, verb: str, report: Callable[[str, str, Found], None]
    ) -> None:
        if not self.is_global and self.latest < np.min(lanes.floor):
            return
        found = _conflict(lanes, self.when, self.who, None, None)
        if found is not None:
            report(verb, "writes", found)


def _conflict(
    lanes: Lanes, when: Array, who: Array, agent: int | None, block: Array | None
) -> Found | None:
    """The first of the accesses in `lanes` that races with the one before it, and their number."""
    stamps = when[lanes.at]
    clocks = stamps >> SITE_BITS
    others = who[lanes.at]
    here = lanes.who >> WORKER_BITS
    elsewhere = (stamps != 0) & (others >> WORKER_BITS != here)
    if block is not None:
        elsewhere |= block[lanes.at] == -2
    several = (others & SEVERAL) == SEVERAL
    racing = (clocks >= lanes.floor) & (stamps != 0) & ((others != lanes.who) | several)
    hot = np.flatnonzero(racing | elsewhere)
    if not hot.size:
        return None
    if not lanes.order.uniform:
        shape = lanes.at.shape
        there = others[hot] & SEVERAL
        agents = np.where(there == SEVERAL, -1, there // lanes.order.agent_size)
        if agent is not None:
            agents[:] = agent
        knows = lanes.order.knows(
            np.broadcast_to(lanes.block, shape)[hot],
            np.broadcast_to(lanes.worker, shape)[hot],
            agents,
            clocks[hot],
        )
        hot = hot[elsewhere[hot] | ~knows]
        if not hot.size:
            return None
    first = hot[0]
    mine = int(np.broadcast_to(lanes.who, lanes.at.shape)[first])
    other = int(others[first])
    return int(lanes.at[first]), mine, other, int(stamps[first]) & SITE_MASK, int(hot.size)
