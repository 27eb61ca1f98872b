"""Sums over long k in parts, each by blocks of its own, and a second kernel that adds the parts up.

The parts are added in order, the first one first, whichever was ready first: the same bits each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import DType, Machine, TensorType
from taskc.kernels.owners import owners_of_boxes, width


def in_parts(
    partial: tc.KernelDefinition,
    sums: TensorType,
    types: tuple[TensorType, TensorType, DType],
    finished: Callable[..., Any],
    *,
    bias: bool,
    machine: Machine,
) -> tc.ProgramDefinition:
    """c[m, n] = finished(the sum of `partial`'s parts, offsets, column), a program of a, b, offsets and c.

    partial  a kernel of a, b and sums
    sums     its output, [parts, m, n]
    types    of a and b, and of c's elements
    """
    left, right, into = types
    parts, m, n = sums.shape
    total = sums.dtype
    lines = owners_of_boxes((m, n), width(n, total, into), machine, accesses=1)

    @tc.function
    def add(sums, offsets, c):
        for row, col in tc.tiles((m, n), by=lines.shape):
            for i, j in lines:
                if row + i < m and col + j < n:
                    value = sums[0, row + i, col + j]
                    for part in tc.static(range(1, parts)):
                        value += sums[part, row + i, col + j]
                    c[row + i, col + j] = finished(value, offsets, col + j)

    if bias:

        @tc.kernel(workers=lines.workers)
        def biased(sums: sums, offsets: total[n], c: tc.out[into[m, n]]):
            add(sums, offsets, c)

        @tc.program
        def matmul(a: left, b: right, offsets: total[n], c: tc.out[into[m, n]]):
            biased(partial(a, b), offsets, out=c)
    else:

        @tc.kernel(workers=lines.workers)
        def added(sums: sums, c: tc.out[into[m, n]]):
            add(sums, None, c)

        @tc.program
        def matmul(a: left, b: right, c: tc.out[into[m, n]]):
            added(partial(a, b), out=c)

    return matmul
