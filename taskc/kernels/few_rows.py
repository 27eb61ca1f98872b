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
_SUMS = 1 << 15  # of a block; wide rows matter more than the nearest cache

Function = Callable[..., Any]


def columns_of(m: Any, n: Any) -> int:
    """The columns of a block: all, in as many equal parts as there are threads, or as the sums need."""
    machine = tc.machine()
    most = max(1, _SUMS // (max(1, m) if isinstance(m, int) else MOST))
    if isinstance(n, int):
        most = ceil(n / max(machine.threads, ceil(n / most)))
    pair = 2 * machine.lanes
    return max(1, ceil(most / pair)) * pair


def few_rows(
    m: Any,
    n: Any,
    k: Any,
    total: DType,
    *,
    columns: int,
    transpose_b: bool,
    operand: Function,
    finished: Function,
) -> Function:
    """A block's part of a kernel, for m <= MOST: so many columns from `col` on, of

    c[m, n] = finished(operand(a) @ b, offsets, column)
    """
    make = _along_rows if transpose_b else _down_columns
    return make(m, n, k, total, columns, operand, finished)


def _down_columns(
    m: Any, n: Any, k: Any, total: DType, columns: int, operand: Function, finished: Function
) -> Function:
    lanes = tc.machine().lanes
    rows = m if isinstance(m, int) else MOST
    # Six rows a power of two apart still lie in different sets of a cache.
    depth = 4 if isinstance(m, int) and m > 4 else 6
    whole = k // depth * depth
    is_constant = isinstance(k, int)
    line = spatial(lanes)

    @tc.function
    def add(a, b, sums, col, first, steps):
        """The products of some steps of k, for all columns of a block."""
        for v in range(0, columns, 2 * lanes):
            for i in range(m):
                for j in repeat(2) * line:
                    if col + v + j < n:
                        value = sums[i, v + j]
                        for q in tc.static(range(steps)):
                            value += operand(a, i, first + q) * b[first + q, col + v + j].to(total)
                        sums[i, v + j] = value

    @tc.function
    def few_rows(a, b, offsets, c, col):
        sums = tc.shared(total[rows, columns + lanes])  # rows in different sets of a cache
        for i in range(m):
            for j in repeat(columns // lanes) * line:
                sums[i, j] = 0
        for q in range(0, whole, depth):
            add(a, b, sums, col, q, depth)
        if is_constant:
            add(a, b, sums, col, whole, k - whole)
        else:
            for q in range(whole, k):
                add(a, b, sums, col, q, 1)
        for i in range(m):
            for j in repeat(columns // lanes) * line:
                if col + j < n:
                    c[i, col + j] = finished(sums[i, j], offsets, col + j)

    return few_rows


def _along_rows(
    m: Any, n: Any, k: Any, total: DType, columns: int, operand: Function, finished: Function
) -> Function:
    lanes = tc.machine().lanes
    # One row of a has little to do for each vector of b: two rows, two vectors at a time. More rows of
    # a share each vector of b.
    shape = (4, 4, 1) if isinstance(m, int) and m > 1 else (1, 2, 2)
    own = repeat(*shape) * spatial(1, 1, lanes)
    group, rows, step = own.shape

    @tc.function
    def few_rows(a, b, offsets, c, col):
        for p in range(0, columns, rows):
            for row in range(0, m, group):
                sums = tc.tile(total, own, 0)
                for q in range(0, k, step):
                    for i, j, s in own:
                        if row + i < m and col + p + j < n and q + s < k:
                            value = b[col + p + j, q + s].to(total)
                            sums[i, j, s] += operand(a, row + i, q + s) * value
                dots = tc.reduce(sums, 2, "+")
                for i, j in dots.mapping:
                    if row + i < m and col + p + j < n:
                        c[row + i, col + p + j] = finished(dots[i, j], offsets, col + p + j)

    return few_rows
