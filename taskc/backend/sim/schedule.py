"""The scheduler of warps that run by themselves: their order, their waits, and deadlocks.

Each warp of a block is a generator that yields what it waits for. The blocks run one after another
(run.py), their warps in an order that the seed decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.machine import Frame, Group
from taskc.backend.sim.memory import Array
from taskc.backend.sim.shadow import Arrivals
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir


@dataclass(frozen=True, slots=True)
class WarpWait:
    """A warp's wait: it may go on when `ready()`."""

    ready: Callable[[], bool]
    what: str
    loc: Location
    is_barrier: bool = False
    worker: int | None = None
    is_spin: bool = False
    grid_barrier: ir.Barrier | None = None


Thread: TypeAlias = Iterator[WarpWait]


class Meeting:
    """A barrier: the workers that have arrived, and those of the previous meeting with their clocks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.generation = 0
        self.frames: list[Frame] = []
        self.released = Arrivals()  # of workers that arrived without waiting
        self.gone: list[Array] = []
        self.node: Any = None
        self.before: Array = np.zeros(0, np.int64)
        self.clocks: Array = np.zeros(0, np.int64)

    @property
    def workers(self) -> Array:
        return np.concatenate([frame.worker_row for frame in self.frames])

    def come(
        self,
        frame: Frame,
        size: int,
        act: Callable[[list[Frame]], None],
        what: str,
        loc: Location,
        *,
        is_barrier: bool = False,
        waits: bool = True,
    ) -> Thread:
        """Let the frame's workers arrive and wait for `size` workers, or go on; the last ones act for all."""
        self.frames.append(frame)
        generation = self.generation
        if sum(frame.width for frame in self.frames) >= size:
            act(self.frames)
            self.frames, self.gone, self.released = [], [], Arrivals()
            self.generation += 1
        elif waits:
            yield WarpWait(lambda: self.generation > generation, what, loc, is_barrier=is_barrier)


class WarpSchedule:
    """Runs the warps of one block."""

    def __init__(self, group: Group, seed: int | None) -> None:
        self.group = group
        self.random = None if seed is None else np.random.default_rng(seed)
        self.meetings: dict[object, Meeting] = {}
        self.threads: dict[
            int, tuple[Frame, Thread, WarpWait | None]
        ] = {}  # those that have not ended
        self.frames: list[Frame] = []
        self.arrivals: list[
            Callable[[], None]
        ] = []  # completions of copies under way, which may happen at any time

    def run(self, frames: list[Frame], start: Callable[[Frame], Thread]) -> bool:
        """Run all warps; returns whether all have ended."""
        self.begin(frames, start)
        return self.go_on()

    def begin(self, frames: list[Frame], start: Callable[[Frame], Thread]) -> None:
        self.frames = frames
        self.threads = {i: (frame, start(frame), None) for i, frame in enumerate(frames)}

    def go_on(self) -> bool:
        """Run until all have ended, or all wait for other blocks of the grid; False in a deadlock."""
        threads = self.threads
        while threads:
            able = [i for i, (_, _, wait) in threads.items() if wait is None or wait.ready()]
            if self.arrivals and (not able or self._maybe()):
                which = 0 if self.random is None else int(self.random.integers(len(self.arrivals)))
                self.arrivals.pop(which)()
                continue
            if not able:
                if self.grid_barrier is not None or (self.spins and self.group.run.waits_for_grid):
                    return True
                self.report_stuck()
                return False
            which = able[0] if self.random is None else able[self.random.integers(len(able))]
            frame, thread, _ = threads[which]
            wait = next(thread, None)
            if wait is None:
                del threads[which]
            else:
                # A waiting thread goes to the end of the queue, for a fair order without a seed.
                del threads[which]
                threads[which] = (frame, thread, wait)
        for meeting in self.meetings.values():
            if meeting.gone:
                message = "workers have come to a barrier for others to wait there, and nobody did"
                self.group.report("barrier-divergence", message, meeting.node.loc, meeting.node)
        return True

    @property
    def spins(self) -> bool:
        """Whether any warp waits for memory to change, which other blocks may do."""
        return any(wait.is_spin for _, _, wait in self.threads.values() if wait is not None)

    @property
    def grid_barrier(self) -> ir.Barrier | None:
        """The barrier of the grid at which all warps wait, if any."""
        if len(self.threads) < len(self.frames):
            return None
        barriers = [wait.grid_barrier for _, _, wait in self.threads.values() if wait is not None]
        return barriers[0] if len(set(map(id, barriers))) == 1 else None

    def _maybe(self) -> bool:
        return self.random is not None and self.random.random() < 0.3

    def meet(
        self,
        key: object,
        size: int,
        frame: Frame,
        node: Any,
        what: str,
        *,
        is_named: bool = False,
        waits: bool = True,
    ) -> Thread:
        """Let the frame's workers arrive at a barrier of `size` workers, and wait for the others or go on.

        A named barrier may be met from several places of the program; other workers than before
        may meet in it when something orders that.
        """
        order = self.group.order
        meeting = self._meeting(key, size)
        first = int(frame.worker_row[0])
        if is_named and meeting.before.size and first not in meeting.before:
            order.spread()
            if (order.known[0, first, meeting.before] < meeting.clocks).all():
                frame.group.report(
                    "race",
                    f"worker {frame.numbers[0]} comes to {what}, in which others have met, and nothing"
                    " orders the two",
                    node.loc,
                    node,
                    (("others have met here", meeting.node.loc),),
                )
        if not meeting.frames:
            meeting.node, meeting.size = node, size
        elif is_named and first in meeting.workers:
            message = f"worker {frame.numbers[0]} comes to {what} again, where it waits for others"
            frame.group.report("barrier-divergence", message, node.loc, node)
        elif meeting.size != size or not (is_named or meeting.node is node):
            message = f"worker {frame.numbers[0]} comes to {what}, others to another one"
            notes = (("the other barrier is here", meeting.node.loc),)
            frame.group.report("barrier-divergence", message, node.loc, node, notes)

        def join(_: list[Frame]) -> None:
            workers, released = meeting.workers, meeting.released.known
            if released is not None:
                here = np.setdiff1d(workers, np.concatenate(meeting.gone))
                known = order.release(0, here) if len(here) else released
                order.acquire(0, here, np.maximum(known, released))
            elif len(workers) == order.workers:
                order.join_blocks(np.zeros(1, np.int64))
            else:
                order.join_workers(0, workers)
            meeting.before = workers
            meeting.clocks = order.clock[0, order.agent_of[workers]]

        if not waits:
            meeting.released.come(order, frame.worker_row)
            meeting.gone.append(frame.worker_row)
        yield from meeting.come(
            frame, meeting.size, join, what, node.loc, is_barrier=True, waits=waits
        )

    def gather(
        self,
        key: object,
        frame: Frame,
        loc: Location,
        act: Callable[[list[Frame]], None],
        size: int | None = None,
    ) -> Thread:
        """All warps of a role, or `size` workers, act together: the last one to arrive does it, for all frames.

        That orders nothing.
        """
        if size is None:
            size = frame.members.stop - frame.members.start
        return self._meeting(key, size).come(frame, size, act, "the other warps", loc)

    def _meeting(self, key: object, size: int) -> Meeting:
        meeting = self.meetings.get(key)
        if meeting is None:
            meeting = self.meetings[key] = Meeting(size)
        return meeting

    def report_stuck(self) -> None:
        ended = len(self.threads) < len(self.frames)
        waits = [(frame, wait) for frame, _, wait in self.threads.values() if wait is not None]
        waits.sort(key=lambda pair: int(pair[0].worker_row[0]))
        stuck, first = waits[0]
        notes: list[tuple[str, Location]] = []
        for frame, wait in waits:
            workers = f"{frame.numbers[0]}..{frame.numbers[-1]}"
            if self.group.run.cluster > 1:
                workers += f" of block {frame.group.blocks[0]}"
            notes.append((f"workers {workers} wait for {wait.what}", wait.loc))
        if all(wait.is_barrier for _, wait in waits):
            kind = "barrier-divergence"
            others = "others have ended" if ended else "others wait elsewhere"
            message = f"some workers come to this barrier, but {others}"
        else:
            kind, message = "deadlock", f"nobody can go on; here it is {first.what} that is missing"
            stuck, first = next(pair for pair in waits if not pair[1].is_barrier)
            message = f"nobody can go on: workers wait for {first.what}"
            if first.is_spin:
                message = f"nobody makes progress: worker {first.worker} waits for {first.what}"
        details: tuple[tuple[str, str | int], ...] = (("block", int(stuck.group.blocks[0])),)
        if first.worker is not None:
            details = (*details, ("worker", first.worker))
        self.group.run.findings.add(
            kind,
            message,
            first.loc,
            details=details,
            notes=tuple(notes[:8]),
            where=first.what,
        )


def all_come(frame: Frame, part: slice, node: ir.Barrier | ir.Do, scope: str) -> Any:
    """Mask of blocks in which all of these workers arrive; reports blocks in which only some do."""
    if frame.mask is None:
        return np.ones(frame.count, np.bool_)
    active = frame.active[:, part]
    some, every = active.any(axis=1), active.all(axis=1)
    if (some != every).any():
        where = np.zeros(frame.full, np.bool_)
        where[:, part] = active & ~np.asarray(every)[:, None]
        message = f"only some workers of the {scope} come to this barrier"
        frame.fault("barrier-divergence", message, where, node)
    return every
