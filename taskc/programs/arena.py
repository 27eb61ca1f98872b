"""arena: where pieces of memory lie that are needed at different times.

Each lies in the smallest gap that is large enough between those that are needed at any of the same times, the largest
first. Where that leaves much unused, other orders are tried; and every second one at the far end of its gap, which is
what a chain needs, whose pieces are needed together with the one before and the one behind:

    1 2 3 1 2 3 …       |1  2 2|  then  |3 3 3 2 2|  then  |3 3 3 . 1|  then  |2 2 . . 1|
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64  # bytes: a cache line
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
    best: tuple[list[int], int] | None = None
    for has_ends in (False, True):
        for order in orders:
            found = _in_order(rounded, spans, order, least if has_ends else None)
            if best is None or found[1] < best[1]:
                best = found
            if best[1] <= least * _GOOD:
                return best
    assert best is not None
    return best


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
