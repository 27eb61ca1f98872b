"""hazards: the earlier calls that each call has to wait for, because of the memory that they access.

    0  t = add(x, y)
    1  u = exp(y)
    2  add(t, u, out=v)      waits for 0 and 1: it reads their results
    3  u = exp(x)            waits for 2, which reads the old u, and so for 1, which wrote it

Read after write, write after read, write after write. Waiting is transitive: calls that are waited for indirectly need
not be named.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Access:
    """A call's access to bytes of one memory, from `start` to before `end`: a read, or possibly a read and write."""

    memory: Hashable
    start: int
    end: int
    writes: bool


def hazards(calls: Sequence[Sequence[Access]]) -> list[set[int]]:
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
