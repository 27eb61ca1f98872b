"""What happened before what, by vector clocks.

A clock ticks where somebody releases what he did: at a phase's end, at a barrier, at an arrival.
The workers of one warp share a clock (they are an *agent*), and so does everything that arrives
through one mbarrier. What each worker knows of each other one's clock is ordered before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.ir.target import WARP

Array: TypeAlias = npt.NDArray[Any]


class Order:
    """What each worker of a group of blocks knows of the others.

    The blocks of a cluster are one here, whose workers are all of theirs, one block after another.

    While all clocks are equal, as they are without warp barriers and mbarriers, `now` and `floor`
    are the whole truth; after that `clock`, `floors` and `known` are. Everyone knows what was done
    at a clock below the floor. Knowing the clock c of a worker is knowing what he did before it.
    """

    def __init__(
        self,
        blocks: int,
        workers: int,
        by_phases: bool,
        agent_of: Array | None = None,
        channels: int = 0,
        cluster: int = 1,
    ) -> None:
        self.blocks = blocks
        self.workers = workers
        self.block_workers = workers // cluster
        self.channels = channels  # mbarriers, whose arrivals are agents of their own
        if by_phases:
            agent_of = np.zeros(workers, np.int64)
        elif agent_of is None:
            agent_of = np.arange(workers) // WARP
        self.agent_of: Array = agent_of
        self.agents = int(agent_of.max(initial=0)) + 1
        self.now = 1
        self.floor = 1
        self.grid_floor = 0  # what any block did at a clock below is known to all
        self.uniform = True
        self.clock: Array = np.zeros((0, 0), np.int64)
        self.floors: Array = np.zeros(0, np.int64)
        self.known: Array = np.zeros((0, 0, 0), np.int32)

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
            self.clock = np.full((self.blocks, self.agents + self.channels), self.now, np.int64)
            self.floors = np.full(self.blocks, self.floor, np.int64)
            shape = (self.blocks, self.workers, self.workers + self.channels)
            self.known = np.full(shape, self.floor, np.int32)

    def latest(self) -> int:
        """The highest clock of a worker."""
        return self.now if self.uniform else int(self.clock[:, : self.agents].max(initial=0))

    def join_blocks(self, blocks: Array, at: int | None = None) -> None:
        """A barrier of all workers of some blocks, whose clocks are then `at`, or what comes next."""
        self.spread()
        latest = self.clock[blocks, : self.agents].max(axis=1, initial=0) + 1
        if at is not None:
            latest = np.full_like(latest, at)
        self.clock[blocks, : self.agents] = latest[:, None]
        self.floors[blocks] = latest
        if self.channels:
            through = self.known[blocks, :, self.workers :].max(axis=1, keepdims=True)
            self.known[blocks, :, self.workers :] = through
        self.known[blocks, :, : self.workers] = latest[:, None, None]

    def join_workers(self, block: int, workers: Array) -> None:
        """A barrier of some workers of one block."""
        self.known[block, workers] = self.release(block, workers)

    def release(self, block: int, workers: Array) -> Array:
        """What those who acquire the result know: all that `workers` did or knew."""
        self.spread()
        agents = self.agent_of[workers]
        self.clock[block, np.unique(agents)] += 1
        known: Array = self.known[block, workers].max(axis=0)
        known[workers] = self.clock[block, agents]
        return known

    def acquire(self, block: int, workers: Array, known: Array) -> None:
        self.spread()
        self.known[block, workers] = np.maximum(self.known[block, workers], known)

    def tick(self, block: int, channel: int) -> int:
        """The stamp of something that will arrive through a channel."""
        self.spread()
        self.clock[block, self.agents + channel] += 1
        return int(self.clock[block, self.agents + channel])

    def stamp(self, block: Any, worker: Any) -> Any:
        """The clocks of workers; of all workers of their blocks for -1."""
        if self.uniform:
            return self.now
        if isinstance(worker, np.ndarray):
            return self.clock[block, self.agent_of[worker]]
        return self.clock[block, : self.agents].max(axis=-1)

    def lowest(self, block: Any) -> Any:
        return self.floor if self.uniform else self.floors[block]

    def knows(
        self, block: Array, worker: Array, members: slice, other: Array, agent: Array, clock: Array
    ) -> Array:
        """Whether `worker` comes after what `other` did at `clock`.

        A `worker` of -1 stands for all members; an `other` of -1 - r for all workers of its agent,
        or, where that is -1, of the block of rank r.
        """
        if self.uniform:
            return np.asarray(clock < self.floor)
        known = self.known[block, worker, other]
        together = np.minimum(worker, other) < 0
        if together.any():
            found: dict[tuple[int, int, int, int], int] = {}  # most elements ask the same
            for i in together.nonzero()[0].tolist():
                key = int(block[i]), int(worker[i]), int(other[i]), int(agent[i])
                if key not in found:
                    found[key] = self._least_known(*key, members)
                known[i] = found[key]
        return np.asarray(known > clock)

    def _least_known(self, block: int, worker: int, other: int, agent: int, members: slice) -> int:
        """What all of a group know of all of another; as `knows` numbers them."""
        rows = self.known[block]
        rows = rows[members] if worker < 0 else rows[worker : worker + 1]
        if other >= 0:
            columns = rows[:, other]
        elif agent >= 0:
            columns = rows[:, : self.workers][:, self.agent_of == agent]
        else:
            first = (-1 - other) * self.block_workers
            columns = rows[:, first : first + self.block_workers]
        return int(columns.min())

    def knows_channel(
        self, block: Array, worker: Array, members: slice, channel: Array, clock: Array
    ) -> Array:
        """Whether `worker` has waited for what arrived through a channel at `clock`."""
        if self.uniform:
            return np.zeros(clock.shape, np.bool_)
        none = np.full(clock.shape, -1)
        return self.knows(block, worker, members, self.workers + channel, none, clock)


def join_all(orders: Sequence[Order]) -> None:
    """A barrier of the grid. Clocks of different blocks are comparable to the one that all have now."""
    at = max((order.latest() for order in orders), default=0) + 1
    for order in orders:
        if order.uniform:
            order.now = order.floor = at
        else:
            order.join_blocks(np.arange(order.blocks), at)
        order.grid_floor = at
