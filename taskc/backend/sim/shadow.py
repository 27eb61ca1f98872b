"""Race detection by shadow memory: the last accesses to each element, and whether they happen before the present one.

Two accesses to an element by different workers, one of them a write that is not atomic, race unless
the later one knows of the earlier one (vector clocks, below). Different blocks know nothing of each other
except what happened before a barrier of the grid.
This is FastTrack (Flanagan and Freund, 2009) on arrays: a write stamp for each element, and a read stamp
for each element and warp.

Asynchronous copies leave marks of their own. An element that a copy has yet to write is *in flight*
until its arrival is known; one that a bulk store has yet to read is *departing*. Elements that matrix products
read asynchronously have the stamp of their warpgroup's channel, which a wait for the products makes known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.dataclass import dataclass
from taskc.ir.target import WARP

# --- Happens-before, by vector clocks ------------------------------------------------------------
# A clock ticks at each release: at a phase's end, at a barrier, at an arrival.
# The workers of one warp share a clock (they are an *agent*), and so do all arrivals
# through one mbarrier. An action happens before a worker's present if the worker knows its clock.


Array: TypeAlias = npt.NDArray[Any]


class Order:
    """The vector clocks of a group of blocks: each worker's knowledge of the others.

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
        self.grid_floor = 0  # actions of any block at a lower clock are known to all
        self.uniform = True
        self.clock: Array = np.zeros((0, 0), np.int64)
        self.floors: Array = np.zeros(0, np.int64)
        self.known: Array = np.zeros((0, 0, 0), np.int32)

    def step(self) -> None:
        """Global fence: every later event happens after every earlier one."""
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
        """A barrier of all workers of some blocks; their clocks become `at`, or the next clock."""
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
        """The knowledge passed to workers that acquire: everything that `workers` did or knew."""
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
        """The stamp of an action that will arrive through a channel."""
        self.spread()
        self.clock[block, self.agents + channel] += 1
        return int(self.clock[block, self.agents + channel])

    def stamp(self, block: Any, worker: Any) -> Any:
        """The clocks of workers, or the highest clock of their blocks for -1."""
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
        """Whether `other`'s action at `clock` happens before `worker`'s present.

        A `worker` of -1 stands for all members; an `other` of -1 - r for all workers of its agent,
        or, where that is -1, of the block of rank r.
        """
        if self.uniform:
            return np.asarray(clock < self.floor)
        known = self.known[block, worker, other]
        together = np.minimum(worker, other) < 0
        if together.any():
            least_known: dict[
                tuple[int, int, int, int], int
            ] = {}  # most elements have the same key
            for i in together.nonzero()[0].tolist():
                key = int(block[i]), int(worker[i]), int(other[i]), int(agent[i])
                if key not in least_known:
                    least_known[key] = self._least_known(*key, members)
                known[i] = least_known[key]
        return np.asarray(known > clock)

    def _least_known(self, block: int, worker: int, other: int, agent: int, members: slice) -> int:
        """The clock up to which all workers of one group know all workers of another, numbered as in `knows`."""
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


class Arrivals:
    """The workers that have come to a place, and what they knew together."""

    def __init__(self) -> None:
        self.count = 0
        self.known: Any = None

    def come(self, order: Order, workers: Array) -> None:
        known = order.release(0, workers)
        self.known = known if self.known is None else np.maximum(self.known, known)
        self.count += len(workers)


def join_all(orders: Sequence[Order]) -> None:
    """A barrier of the grid: all clocks become equal, so that those of different blocks are comparable."""
    at = max((order.latest() for order in orders), default=0) + 1
    for order in orders:
        if order.uniform:
            order.now = order.floor = at
        else:
            order.join_blocks(np.arange(order.blocks), at)
        order.grid_floor = at


SITE_BITS = 20
SITE_MASK = (1 << SITE_BITS) - 1
WORKER_BITS = 24
SEVERAL = (1 << WORKER_BITS) - 1  # the number for more than one worker of a block,
FEWEST = SEVERAL - 15  # minus the block's rank in a cluster

Found: TypeAlias = "tuple[int, int, int, int, int]"
"""A race: (element, this one's who, the other's who, the other's site, how many)."""


def workers_of(number: int, order: Order) -> slice:
    """The workers with this number, in the order."""
    if number < FEWEST:
        return slice(number, number + 1)
    first = (SEVERAL - number) * order.block_workers
    return slice(first, first + order.block_workers)


_PENDING = {
    "copy": ("unwaited-copy", "a copy may not have reached yet", "the copy"),
    "store": ("unwaited-copy", "a bulk store may not have read yet", "the copy"),
    "product": ("unwaited-product", "a matrix product may not have read yet", "the product"),
}


@dataclass(slots=True, eq=False)
class Lanes:
    """An access of some workers to some elements of a memory, with an entry for each; it reports its conflicts.

    frame   the workers that execute, and `memory` what they access: they name both in reports
    at      numbers the entries of the memory's shadow
    block   counts within the group
    worker  -1 is all `members`
    who     is global
    agents  those that take part, if not all do; of use where `worker` is -1
    newest  of all clocks; `lowest` of all floors
    """

    frame: Any
    memory: Any
    at: Array
    block: Array
    worker: Array | int
    members: slice
    who: Array
    site: int
    agents: Sequence[int] | None
    order: Order = field(init=False)
    stamp: Any = field(init=False)
    floor: Any = field(init=False)
    newest: Any = field(init=False)
    lowest: Any = field(init=False)

    def __post_init__(self) -> None:
        order = self.order = self.frame.group.order
        clock = order.stamp(self.block, self.worker)
        self.stamp = clock << SITE_BITS | self.site
        self.floor = order.lowest(self.block)
        self.newest, self.lowest = clock, self.floor
        if not order.uniform:
            self.newest = int(clock.max(initial=0))
            self.lowest = int(order.floors[0] if order.blocks == 1 else self.floor.min(initial=0))

    def workers(self, chosen: Array) -> Array:
        if isinstance(self.worker, np.ndarray):
            return self.worker[chosen]
        return np.full(chosen.shape, self.worker)

    def race(self, verb: str, other_verb: str, found: Found | None) -> None:
        """Report a race, if there is one."""
        if found is None:
            return
        run = self.frame.run
        at, mine, other, other_site, count = found
        block, other_block = run.who(mine)[0], run.who(other)[0]
        element = self.frame.name_element(self.memory, at)
        who, whom = self._name(mine), self._name(other)
        details: tuple[tuple[str, str | int], ...] = (("block", block), ("element", element))
        details = (*details, ("worker", who), ("other", whom))
        why = "within one phase" if run.by_phases else "and nothing orders the two"
        if block != other_block:
            who, whom = f"{who} of block {block}", f"{whom} of block {other_block}"
            may_meet = run.waits_for_grid or block // run.cluster == other_block // run.cluster
            why = "and nothing orders the two" if may_meet else "blocks are not ordered"
        run.findings.add(
            "race",
            f"{who} {verb} {element}, which {whom} {other_verb} ({why})",
            run.sites[self.site],
            count=count,
            details=details,
            notes=((f"{whom} {other_verb} it here", run.sites[other_site]),),
            where=self.site,
        )

    def unwaited(self, verb: str, wrong: Array, sites: Array, what: str) -> None:
        """Report elements that an asynchronous action, issued at `sites`, may not have reached yet."""
        run = self.frame.run
        first = int(np.argmax(wrong))
        element = self.frame.name_element(self.memory, int(self.at[first]))
        who = int(self.who[first])
        kind, done, issued = _PENDING[what]
        run.findings.add(
            kind,
            f"{self._name(who)} {verb} {element}, which {done}",
            run.sites[self.site],
            count=int(np.count_nonzero(wrong)),
            details=(("block", run.who(who)[0]), ("element", element)),
            notes=((f"{issued} is issued here", run.sites[int(sites[0])]),),
            where=self.site,
        )

    def _name(self, who: int) -> str:
        run = self.frame.run
        worker = run.who(who)[1]
        if worker is None:
            return "several workers" if run.workers > 1 else "its worker"
        is_task = self.frame.anonymous and run.by_phases
        return f"task {worker}" if is_task else f"worker {worker}"


class Touches:
    """The last reads or atomics of each element, which may be several workers' at the same time."""

    def __init__(self, size: int, agents: int, is_global: bool) -> None:
        self.when = np.zeros((agents, size), np.int64)
        self.who = np.zeros((agents, size), np.int64)
        self.block = np.full(size, -1, np.int64) if is_global else None  # -2 for several blocks
        self.latest = 0

    def record(self, lanes: Lanes) -> None:
        size = self.when.shape[1]
        order = lanes.order
        forgotten = None
        if self.block is not None and order.grid_floor:
            forgotten = self.when[:, lanes.at].max(axis=0) >> SITE_BITS < order.grid_floor
        if not isinstance(lanes.worker, np.ndarray):
            agents = range(order.agents) if lanes.agents is None else lanes.agents
            for agent in agents:
                stamp = lanes.stamp
                if not order.uniform:
                    stamp = order.clock[lanes.block, agent] << SITE_BITS | lanes.site
                self.when[agent, lanes.at] = stamp
                self.who[agent, lanes.at] = lanes.who
        else:
            at = lanes.at
            if len(self.when) > 1:
                at = at + order.agent_of[lanes.worker] * size
            when, who = self.when.reshape(-1), self.who.reshape(-1)
            others = who[at] != lanes.who
            if np.count_nonzero(others):
                shared = (when[at] >> SITE_BITS == lanes.stamp >> SITE_BITS) & others
                who[at] = lanes.who
                shared |= who[at] != lanes.who
                if np.count_nonzero(shared):
                    ranks = lanes.worker[shared] // order.block_workers
                    who[at[shared]] = (lanes.who | SEVERAL)[shared] - ranks
            when[at] = lanes.stamp
        self.latest = max(self.latest, lanes.newest)
        if self.block is not None:
            here = lanes.who >> WORKER_BITS
            before = self.block[lanes.at]
            if forgotten is not None:
                before[forgotten] = -1
            changed = before != here
            if np.count_nonzero(changed):
                self.block[lanes.at] = here
                changed &= before != -1
                changed |= self.block[lanes.at] != here
                self.block[lanes.at[changed]] = -2

    def conflicts(self, lanes: Lanes) -> Found | None:
        if self.block is None and self.latest < lanes.lowest:
            return None
        for agent in range(len(self.when)):
            found = _conflict(
                lanes,
                self.when[agent],
                self.who[agent],
                agent,
                self.block,
                is_global=self.block is not None,
            )
            if found is not None:
                return found
        return None


class InFlight:
    """The elements that asynchronous actions of one kind have yet to reach, as far as anyone knows.

    what   "copy": to be written; "store": to be read by a bulk store; "product": read by matrix products
    state  0 for none; -1 until the issuing worker has waited; else the clock and 1 + the number of
           the channel that it arrives through: who knows that clock may touch the element
    """

    def __init__(self, what: str, size: int) -> None:
        self.what = what
        self.state = np.zeros(size, np.int64)
        self.site = np.zeros(size, np.int64)

    def add(self, at: Array, state: int, site: int) -> None:
        self.state[at] = state
        self.site[at] = site

    def late(self, lanes: Lanes) -> Array | None:
        """Mask of elements whose arrival these workers have not waited for; None if there are none."""
        state = self.state[lanes.at]
        if not np.count_nonzero(state):
            return None
        wrong = state < 0
        flying = np.flatnonzero(state > 0)
        if flying.size:
            state = state[flying]
            wrong[flying] = ~lanes.order.knows_channel(
                lanes.block[flying],
                lanes.workers(flying),
                lanes.members,
                (state & SITE_MASK) - 1,
                state >> SITE_BITS,
            )
        return wrong if np.count_nonzero(wrong) else None

    def check(self, lanes: Lanes, verb: str) -> Array | None:
        """Report elements whose arrival these workers have not waited for; returns their mask, or None."""
        wrong = self.late(lanes)
        if wrong is not None:
            lanes.unwaited(verb, wrong, self.site[lanes.at[wrong]], self.what)
        return wrong


@dataclass(slots=True, eq=False)
class Shadow:
    """The last accesses to each element of one memory.

    flight     elements that copies write
    departing  elements that bulk stores read
    products   elements that matrix products read, by the warpgroup's channel
    """

    size: int
    agents: int
    is_global: bool
    when: Array = field(init=False)
    who: Array = field(init=False)
    latest: int = 0
    reads: Touches | None = None
    atomics: Touches | None = None
    flight: InFlight | None = None
    departing: InFlight | None = None
    products: dict[int, InFlight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.when = np.zeros(self.size, np.int64)
        self.who = np.zeros(self.size, np.int64)

    def read(self, lanes: Lanes) -> None:
        self._against_writes(lanes, "reads")
        if self.atomics is not None:
            lanes.race("reads", "updates", self.atomics.conflicts(lanes))
        self.note_read(lanes)

    def note_read(self, lanes: Lanes) -> None:
        if self.reads is None:
            self.reads = Touches(self.size, self.agents, self.is_global)
        self.reads.record(lanes)

    def atomic(self, lanes: Lanes) -> None:
        self._against_pending(lanes, "updates")
        self._against_writes(lanes, "updates")
        if self.reads is not None:
            lanes.race("updates", "reads", self.reads.conflicts(lanes))
        if self.atomics is None:
            self.atomics = Touches(self.size, self.agents, self.is_global)
        self.atomics.record(lanes)

    def write(self, lanes: Lanes) -> None:
        self.check_write(lanes, "writes")
        self.note_write(lanes)
        back = self.who[lanes.at]
        overwritten = back != lanes.who
        if np.count_nonzero(overwritten):
            twice = overwritten.nonzero()[0]
            first = twice[0]
            at = int(lanes.at[first])
            found = (at, int(lanes.who[first]), int(back[first]), lanes.site, int(twice.size))
            lanes.race("writes", "writes", found)

    def check_write(self, lanes: Lanes, verb: str) -> None:
        """Report conflicts of a write, generic or asynchronous."""
        self._against_pending(lanes, verb)
        self._against_writes(lanes, verb)
        if self.reads is not None:
            lanes.race(verb, "reads", self.reads.conflicts(lanes))
        if self.atomics is not None:
            lanes.race(verb, "updates", self.atomics.conflicts(lanes))

    def note_write(self, lanes: Lanes) -> None:
        self.when[lanes.at] = lanes.stamp
        self.who[lanes.at] = lanes.who
        self.latest = max(self.latest, lanes.newest)
        if self.flight is not None:
            self.flight.state[lanes.at] = 0

    def writers(self, entries: Array) -> Iterator[tuple[int, Array, int]]:
        """The last writers of these entries: who, the mask of the entries, and the latest clock."""
        who, stamps = self.who[entries], self.when[entries]
        for writer in np.unique(who[stamps != 0]).tolist():
            mine = (who == writer) & (stamps != 0)
            yield writer, mine, int(stamps[mine].max()) >> SITE_BITS

    def latest_clocks(self, entries: Array, order: Order) -> Array | None:
        """The highest clock of each worker's writes, -1 without any; None if a number stands for several workers."""
        stamps = self.when[entries]
        written = stamps != 0
        writers = self.who[entries][written] & SEVERAL
        if writers.max(initial=0) >= FEWEST:
            return None
        latest = np.full(order.workers, -1)
        np.maximum.at(latest, writers, stamps[written] >> SITE_BITS)
        return latest

    # Asynchronous actions.

    def launch(self, lanes: Lanes, state: int) -> None:
        """Issue a copy that will write these elements; `state` is defined in InFlight."""
        self.check_write(lanes, "copies into")
        if self.flight is None:
            self.flight = InFlight("copy", self.size)
        self.flight.add(lanes.at, state, lanes.site)

    def depart(self, lanes: Lanes) -> None:
        """Issue a bulk store that will read these elements."""
        if self.departing is None:
            self.departing = InFlight("store", self.size)
        self.departing.add(lanes.at, -1, lanes.site)

    def multiply(self, at: Array, channel: int, clock: int, site: int) -> None:
        """Issue a matrix product that will read these elements."""
        if channel not in self.products:
            self.products[channel] = InFlight("product", self.size)
        self.products[channel].add(at, clock << SITE_BITS | (channel + 1), site)

    def _against_pending(self, lanes: Lanes, verb: str) -> None:
        for pending in (self.flight, self.departing, *self.products.values()):
            if pending is not None:
                pending.check(lanes, verb)

    def _against_writes(self, lanes: Lanes, verb: str) -> None:
        if self.latest and (self.is_global or self.latest >= lanes.lowest):
            found = _conflict(lanes, self.when, self.who, None, None, is_global=self.is_global)
            lanes.race(verb, "writes", found)


def _conflict(
    lanes: Lanes,
    when: Array,
    who: Array,
    agent: int | None,
    block: Array | None,
    *,
    is_global: bool,
) -> Found | None:
    """The first access in `lanes` that races with an earlier one, and the number of such accesses."""
    others, stamps = who[lanes.at], when[lanes.at]
    suspects = (others != lanes.who) | ((others & SEVERAL) >= FEWEST)
    if block is not None:
        suspects |= block[lanes.at] == -2
    # Accesses below the floor are known to everyone, in the blocks that share the memory.
    suspects &= stamps >= (1 if is_global else lanes.floor << SITE_BITS)
    hot = suspects.nonzero()[0]
    if not hot.size:
        return None
    elsewhere = others[hot] >> WORKER_BITS != lanes.who[hot] >> WORKER_BITS
    if block is not None:
        elsewhere |= block[lanes.at[hot]] == -2
    if is_global:
        floor = lanes.floor if lanes.order.uniform else lanes.floor[hot]
        unordered = stamps[hot] >> SITE_BITS >= np.where(elsewhere, lanes.order.grid_floor, floor)
        hot, elsewhere = hot[unordered], elsewhere[unordered]
    if not lanes.order.uniform:
        other_worker = others[hot] & SEVERAL
        other_worker = np.where(other_worker >= FEWEST, other_worker - SEVERAL - 1, other_worker)
        other_worker = np.where(elsewhere, -1, other_worker)
        agents = np.full(hot.shape, -1 if agent is None else agent)
        knows = lanes.order.knows(
            lanes.block[hot],
            lanes.workers(hot),
            lanes.members,
            other_worker,
            agents,
            stamps[hot] >> SITE_BITS,
        )
        hot = hot[elsewhere | ~knows]
    if not hot.size:
        return None
    first = hot[0]
    mine = int(lanes.who[first])
    other = int(others[first])
    return int(lanes.at[first]), mine, other, int(stamps[first]) & SITE_MASK, int(hot.size)
