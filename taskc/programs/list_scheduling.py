"""beside: an order of calls in which those that leave threads idle stand together, where none has to wait for another.

    a = f(x)                     a = f(x),  c = f(y)
    b = g(a)                     b = g(a),  d = g(c)
    c = f(y)          ->
    d = g(c)

This is list scheduling. The calls stay in their order, but for those that are taken from further behind to fill idle
threads: of these first the ones that most others wait for, one behind another. What is too little work for a thread
comes along with the first call that waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush


def beside(
    waits: Sequence[Collection[int]], blocks: Sequence[int], threads: int
) -> list[list[int]]:
    """The calls as groups, in their order. Those of a group may run beside each other.

    waits   for each call the earlier ones that it has to wait for: `hazards`
    blocks  how many threads each could keep busy; 0 where there is too little work for another one
    """
    return list(_Scheduled(waits, blocks, threads).groups())


class _Scheduled:
    """What of the calls is done, and what could be next.

    large   for each call the earlier ones with work that it waits for, but for little ones between
    left    how many of these aren't done yet
    ready   the calls that leave threads idle and wait for none: minus how many wait one behind another, and the call
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
        found: list[set[int]] = []
        for others in self.waits:
            found.append(set())
            for other in others:
                found[-1].update((other,) if self.blocks[other] else found[other])
        return found

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
        """Ready calls for the threads that one leaves idle."""
        idle = self.threads - self.blocks[first] if self.blocks[first] else 0
        while idle > 0 and self.ready:
            _, number = heappop(self.ready)
            if number != first and not self.done[number]:
                yield number
                idle -= self.blocks[number]

    def _little(self, number: int) -> list[int]:
        """The calls that one has to wait for and that aren't done yet, in order: they have little work, all of them."""
        found: set[int] = set()
        pending = [number]
        while pending:
            for other in self.waits[pending.pop()]:
                if not self.done[other] and other not in found:
                    found.add(other)
                    pending.append(other)
        for little in found:
            self.done[little] = True
        return sorted(found)

    def _finish(self, number: int) -> None:
        self.done[number] = True
        for other in self.waiting[number]:
            self.left[other] -= 1
            if self.left[other] == 0:
                self._offer(other)
