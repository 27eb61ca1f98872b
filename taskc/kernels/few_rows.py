"""Products of a few rows, a vector and a matrix among them: what counts is how b is read.

    b[k, n]  a few rows of b at a time go by side by side, from end to end; the sums lie in the nearest
             caches, and each is read and written once for these steps of k
    b[n, k]  workers walk along k together, in a few rows of b, and what each of them has found is
             added up at the end

So the sums of the second kind go over k in another order than those of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import DType, repeat, spatial

MOST = 8  # of more rows, b is worth a copy
_SUMS = 1 << 14  # of a block; wide rows matter more than the nearest cache

Function = Callable[..., Any]


def few_rows(
    m: int,
    n: Any,
    k: Any,
    total: DType,
    *,
    transpose_b: bool,
    operand: Function,
    finished: Function,
) -> Function:
    """The body of a kernel: c[m, n] = finished(operand(a) @ b, offsets, column)."""
    return (_along_rows if transpose_b else _down_columns)(m, n, k, total, operand, finished)


def _down_columns(
    m: int, n: Any, k: Any, total: DType, operand: Function, finished: Function
) -> Function:
    machine = tc.machine()
    lanes = machine.lanes
    wide = _SUMS // m // lanes * lanes
    if isinstance(n, int):
        wide = min(wide, ceil(n / machine.threads / lanes) * lanes)
    # Six rows a power of two apart still lie in different sets of a cache.
    depth = 6 if m <= 4 else 4
    whole = k // depth * depth
    every = repeat(m, wide // lanes) * spatial(1, lanes)

    @tc.function
    def add(a, b, sums, col, first, steps):
        """The products of some steps of k, for all columns of a block."""
        for v in range(0, wide, lanes):
            for i, j in repeat(m, 1) * spatial(1, lanes):
                if col + v + j < n:
                    value = sums[i, v + j]
                    for q in tc.static(range(steps)):
                        value += operand(a, 0, i, first + q) * b[first + q, col + v + j].to(total)
                    sums[i, v + j] = value

    @tc.function
    def product(a, b, offsets, c):
        for col in tc.tiles(n, by=wide):
            sums = tc.shared(total[m, wide + lanes])  # rows in different sets of a cache
            for i, j in every:
                sums[i, j] = 0
            for q in range(0, whole, depth):
                add(a, b, sums, col, q, depth)
            if isinstance(k, int):
                add(a, b, sums, col, whole, k - whole)
            else:
                for q in range(whole, k):
                    add(a, b, sums, col, q, 1)
            for i, j in every:
                if col + j < n:
                    c[i, col + j] = finished(sums[i, j], offsets, col + j)

    return product


def _along_rows(
    m: int, n: Any, k: Any, total: DType, operand: Function, finished: Function
) -> Function:
    lanes = tc.machine().lanes
    # One row of a has little to do for each vector of b: two rows, two vectors at a time. More rows of
    # a share each vector of b.
    own = repeat(*((1, 2, 2) if m == 1 else (4, 4, 1))) * spatial(1, 1, lanes)
    by, step = own.shape[:2], own.shape[2]

    @tc.function
    def product(a, b, offsets, c):
        for row, col in tc.tiles((m, n), by=by):
            sums = tc.tile(total, own, 0)
            for q in range(0, k, step):
                for i, j, p in own:
                    if row + i < m and col + j < n and q + p < k:
                        sums[i, j, p] += operand(a, 0, row + i, q + p) * b[col + j, q + p].to(total)
            dots = tc.reduce(sums, 2, "+")
            for i, j in dots.mapping:
                if row + i < m and col + j < n:
                    c[row + i, col + j] = finished(dots[i, j], offsets, col + j)

    return product
