"""arena: where pieces of memory lie that are needed at different times.

Each lies in the smallest gap that is large enough between those that are needed at any of the same times, in the order
in which they are needed. Where that leaves much unused, other orders are tried, of few pieces; and every second one at
the far end of its gap, which is what a chain needs, whose pieces are needed together with the one before and the one
behind:

    1 2 3 1 2 3 …       |1  2 2|  then  |3 3 3 2 2|  then  |3 3 3 . 1|  then  |2 2 . . 1|
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64  # bytes: a cache line
_MANY = 1000
_END = 1 << 62  # no memory ends there
_GOOD = 1.02  # times what is needed at once: no other order is tried


def most_alive(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    """The most bytes that are needed at once; a span has the first time and the last."""
    if not sizes:
        return 0
    changes = np.zeros(max(last for _, last in spans) + 2, np.int64)
    for size, (first, last) in zip(sizes, spans, strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return int(changes.cumsum().max())


def placed(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """The offset of each, and the bytes that all take."""
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    least = most_alive(rounded, spans)
    numbers = range(len(sizes))
    orders = (
        sorted(numbers, key=lambda n: (-rounded[n], spans[n])),
        sorted(numbers, key=lambda n: (spans[n], -rounded[n])),
        sorted(numbers, key=lambda n: (spans[n][0] - spans[n][1], spans[n], -rounded[n])),
        sorted(numbers, key=lambda n: (-rounded[n] * (1 + spans[n][1] - spans[n][0]), spans[n])),
    )
    best = _by_time(rounded, spans)
    if len(sizes) > _MANY:  # the others take time for the square of their number
        return best
    for end in (None, least):
        for order in orders:
            if best[1] <= least * _GOOD:
                return best
            found = _in_order(rounded, spans, order, end)
            best = min(best, found, key=lambda it: it[1])
    return best


def _by_time(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Each as its time comes, in the smallest gap that there is then."""
    offsets, total = [0] * len(sizes), 0
    gaps = [(0, _END)]  # in order, and none next to another one
    ending = deque(sorted(range(len(sizes)), key=lambda n: spans[n][1]))
    for number in sorted(range(len(sizes)), key=lambda n: (spans[n], -sizes[n])):
        while spans[ending[0]][1] < spans[number][0]:
            over = ending.popleft()
            _add_gap(gaps, offsets[over], offsets[over] + sizes[over])
        size = sizes[number]
        extents = [stop - start for start, stop in gaps]
        at = extents.index(min(extent for extent in extents if extent >= size))
        start, stop = gaps[at]
        gaps[at : at + 1] = [(start + size, stop)] if start + size < stop else []
        offsets[number] = start if size else 0  # within no other
        total = max(total, start + size)
    return offsets, total


def _add_gap(gaps: list[tuple[int, int]], start: int, stop: int) -> None:
    at = bisect(gaps, (start, stop))
    if at < len(gaps) and gaps[at][0] == stop:
        stop = gaps.pop(at)[1]
    if at and gaps[at - 1][1] == start:
        at -= 1
        start = gaps.pop(at)[0]
    if start < stop:
        gaps.insert(at, (start, stop))


def _in_order(
    sizes: Sequence[int],
    spans: Sequence[tuple[int, int]],
    order: Sequence[int],
    end: int | None,
) -> tuple[list[int], int]:
    """end  of the memory that ought to do: every second piece lies at the far end of its gap"""
    offsets, total = [0] * len(sizes), 0
    lying: list[tuple[int, int, int, int]] = []  # by their starts: start, stop, and the span
    for count, number in enumerate(order):
        size, (first, last) = sizes[number], spans[number]
        others = [it for it in lying if it[2] <= last and it[3] >= first]
        free, stop = _gap(others, size, end)
        offset = stop - size if end is not None and count % 2 == 1 else free
        insort(lying, (offset, offset + size, first, last))
        offsets[number] = offset
        total = max(total, offset + size)
    return offsets, total


def _gap(others: Sequence[tuple[int, ...]], size: int, end: int | None) -> tuple[int, int]:
    """The smallest gap of so many bytes between others, which come in order, or else behind all of them."""
    found, free, least = None, 0, max(size, 1)
    for start, stop, *_ in others:
        if start - free >= least and (found is None or start - free < found[1] - found[0]):
            found = free, start
        free = max(free, stop)
    if (
        end is not None
        and end - free >= least
        and (found is None or end - free < found[1] - found[0])
    ):
        found = free, end
    return found or (free, free + size)
