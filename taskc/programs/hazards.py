"""hazards: the earlier calls that each call has to wait for, because of the memory that they access.

    0  t = add(x, y)
    1  u = exp(y)
    2  add(t, u, out=v)      waits for 0 and 1: it reads their results
    3  u = exp(x)            waits for 2, which reads the old u, and so for 1, which wrote it

Read after write, write after read, write after write. Waiting is transitive: calls that are waited for indirectly need
not be named.

List scheduling: group calls that leave threads idle with independent calls that run at the same time.

    a = f(x)                     a = f(x),  c = f(y)
    b = g(a)                     b = g(a),  d = g(c)
    c = f(y)          ->
    d = g(c)

Calls stay in order, except that later ones are moved forward to fill idle threads: first the ones with the longest
chains of calls waiting for them. A call with too little work for a thread comes just before the first call that waits
for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import field
from heapq import heappop, heappush

from taskc.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A call's access to bytes of one memory, from `start` to before `end`: a read, or possibly a read and write."""

    memory: Hashable
    start: int
    end: int
    writes: bool


def hazards(calls: Sequence[Sequence[ByteRange]]) -> list[set[int]]:
    """For each call, the earlier calls that it has to wait for."""
    written = {access.memory for call in calls for access in call if access.writes}
    reads, writes = ({memory: _Parts() for memory in written} for _ in range(2))
    waits_of: list[set[int]] = []
    for number, call in enumerate(calls):
        touching = [
            access for access in call if access.memory in written and access.start < access.end
        ]
        waits: set[int] = set()
        for access in touching:
            span = access.start, access.end
            waits.update(writes[access.memory].overlapping(*span))
            if access.writes:
                waits.update(reads[access.memory].overlapping(*span))
                # Later accesses to these bytes wait for this call, which is enough.
                writes[access.memory].drop_within(*span)
                reads[access.memory].drop_within(*span)
        for access in touching:
            parts = writes if access.writes else reads
            parts[access.memory].add(access.start, access.end, number)
        waits_of.append(waits)
    return waits_of


@dataclass(slots=True)
class _Parts:
    """Parts of one memory, each with a call that accesses it.

    parts    sorted by start: start, end, call
    longest  the most bytes of any part so far
    """

    parts: list[tuple[int, int, int]] = field(default_factory=list)
    longest: int = 0

    def add(self, start: int, end: int, call: int) -> None:
        insort(self.parts, (start, end, call))
        self.longest = max(self.longest, end - start)

    def overlapping(self, start: int, end: int) -> Iterator[int]:
        for position in range(*self._around(start, end)):
            if self.parts[position][1] > start:
                yield self.parts[position][2]

    def drop_within(self, start: int, end: int) -> None:
        low, high = bisect_left(self.parts, (start,)), bisect_left(self.parts, (end,))
        self.parts[low:high] = [part for part in self.parts[low:high] if part[1] > end]

    def _around(self, start: int, end: int) -> tuple[int, int]:
        """The range of positions of the parts that may overlap."""
        low = bisect_left(self.parts, (start - self.longest,))
        return low, bisect_left(self.parts, (end,), low)


def list_schedule(
    waits: Sequence[Collection[int]], blocks: Sequence[int], threads: int
) -> list[list[int]]:
    """The calls as groups, in order. The calls of a group may run at the same time.

    waits   for each call, the earlier ones that it has to wait for: `hazards`
    blocks  the number of threads that each can keep busy; 0 if it has too little work for another thread
    """
    return list(_Scheduled(waits, blocks, threads).groups())


class _Scheduled:
    """The state of the scheduler. A call is little if its blocks are 0, and large otherwise.

    left     for each call, the number of large calls that it still waits for, directly or through little ones
    waiting  for each call, the large calls that wait for it
    behind   the length of the longest chain of calls that wait for each
    ready    a heap of calls that leave threads idle and wait for none: the negated chain length, and the call
    """

    def __init__(
        self, waits: Sequence[Collection[int]], blocks: Sequence[int], threads: int
    ) -> None:
        self.waits, self.blocks, self.threads = waits, blocks, threads
        self.done = [False] * len(waits)
        self.ready: list[tuple[int, int]] = []
        large = self._large()
        self.left = list(map(len, large))
        self.waiting: list[list[int]] = [[] for _ in waits]
        for number, others in enumerate(large):
            for other in others if blocks[number] else ():
                self.waiting[other].append(number)
        self.behind = [0] * len(waits)
        for number in reversed(range(len(waits))):
            self.behind[number] = 1 + max([self.behind[k] for k in self.waiting[number]], default=0)
        for number, count in enumerate(self.left):
            if count == 0:
                self._offer(number)

    def _large(self) -> list[set[int]]:
        """For each call, the large calls that it waits for, directly or through little ones."""
        large: list[set[int]] = []
        for others in self.waits:
            large.append(set())
            for other in others:
                large[-1].update((other,) if self.blocks[other] else large[other])
        return large

    def _offer(self, number: int) -> None:
        if 0 < self.blocks[number] < self.threads:
            heappush(self.ready, (-self.behind[number], number))

    def groups(self) -> Iterator[list[int]]:
        for first in range(len(self.waits)):
            if self.done[first]:
                continue
            group = sorted([first, *self._partners(first)])
            for number in group:
                yield from [[little] for little in self._little(number)]
            yield group
            for number in group:
                self._finish(number)

    def _partners(self, first: int) -> Iterator[int]:
        """Ready calls for the threads that a call leaves idle."""
        idle = self.threads - self.blocks[first] if self.blocks[first] else 0
        while idle > 0 and self.ready:
            _, number = heappop(self.ready)
            if number != first and not self.done[number]:
                yield number
                idle -= self.blocks[number]

    def _little(self, number: int) -> list[int]:
        """The unfinished calls that a call waits for, in order; all of them are little."""
        little_calls: set[int] = set()
        pending = [number]
        while pending:
            for other in self.waits[pending.pop()]:
                if not self.done[other] and other not in little_calls:
                    little_calls.add(other)
                    pending.append(other)
        for little in little_calls:
            self.done[little] = True
        return sorted(little_calls)

    def _finish(self, number: int) -> None:
        self.done[number] = True
        for other in self.waiting[number]:
            self.left[other] -= 1
            if self.left[other] == 0:
                self._offer(other)
