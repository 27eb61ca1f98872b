"""arena: the offsets of pieces of memory with different lifetimes in one arena.

In the order of its lifetime, each piece goes into the smallest gap that fits it between pieces alive at the same time.
If that wastes much memory and pieces are few, other orders are tried. Then every second piece also goes to the far end
of its gap, which suits chains, where each piece is alive together with the one before and the one after:

    1 2 3 1 2 3 …       |1  2 2|  then  |3 3 3 2 2|  then  |3 3 3 . 1|  then  |2 2 . . 1|
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64  # bytes: a cache line
_MAX_ORDERED = 1000  # pieces for which other orders are tried: these take quadratic time
_END = 1 << 62  # beyond the end of any memory
_GOOD = 1.02  # times the least possible size: no other order is tried


def most_alive(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    """The most bytes alive at once; a span is the first and the last time of a lifetime."""
    if not sizes:
        return 0
    changes = np.zeros(max(last for _, last in spans) + 2, np.int64)
    for size, (first, last) in zip(sizes, spans, strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return int(changes.cumsum().max())


def placed(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """The offset of each piece, and the size of the arena."""
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
    if len(sizes) > _MAX_ORDERED:
        return best
    for end in (None, least):
        for order in orders:
            if best[1] <= least * _GOOD:
                return best
            candidate = _in_order(rounded, spans, order, end)
            best = min(best, candidate, key=lambda layout: layout[1])
    return best


def _by_time(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Place each piece at its first time, in the smallest gap free then."""
    offsets, total = [0] * len(sizes), 0
    gaps = [(0, _END)]  # in order, and never adjacent
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
        offsets[number] = start if size else 0  # an empty piece must not lie within another
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
    """end  size of an arena that should do: every second piece goes to the far end of its gap"""
    offsets, total = [0] * len(sizes), 0
    lying: list[tuple[int, int, int, int]] = []  # sorted: start, stop, and the span
    for count, number in enumerate(order):
        size, (first, last) = sizes[number], spans[number]
        others = [piece for piece in lying if piece[2] <= last and piece[3] >= first]
        free, stop = _gap(others, size, end)
        offset = stop - size if end is not None and count % 2 == 1 else free
        insort(lying, (offset, offset + size, first, last))
        offsets[number] = offset
        total = max(total, offset + size)
    return offsets, total


def _gap(others: Sequence[tuple[int, ...]], size: int, end: int | None) -> tuple[int, int]:
    """The smallest gap of at least `size` bytes between others, which are sorted, or the space after them all."""
    best, free, least = None, 0, max(size, 1)
    for start, stop, *_ in others:
        if start - free >= least and (best is None or start - free < best[1] - best[0]):
            best = free, start
        free = max(free, stop)
    if end is not None and end - free >= least and (best is None or end - free < best[1] - best[0]):
        best = free, end
    return best or (free, free + size)
