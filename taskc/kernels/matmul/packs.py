"""GEMM of 8- and 16-bit numbers on processors, by the instruction that the machine has for them.

A block is a panel of columns, as in panels.py; a tile of its rows is one `tc.mma`. The panel of b lies in
packs: of as many elements of k as the instruction takes at once, for one column after the other. Each block
puts it so, or it comes so (`packed`).
"""

from __future__ import annotations

from math import ceil
from typing import Any

import taskc as tc
from taskc import TensorType, repeat
from taskc.kernels.matmul.plan import Packs
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.precision import LONG_SUM, is_long


def packed_type(problem: Problem, plan: Packs) -> TensorType:
    """The type of a packed b: packs of columns in panels, zeros behind its end."""
    # A layout has room for one pack of one panel, where there is none.
    panels = max(1, ceil(problem.n / plan.wide))
    depth = max(1, ceil(problem.k / plan.step)) * plan.step
    layout = repeat(1, panels) * repeat(depth // plan.pack, plan.wide) * repeat(plan.pack, 1)
    return problem.right[depth, panels * plan.wide].laid(layout)


def packs(problem: Problem, plan: Packs) -> tc.KernelDefinition:
    m, n, k, total, epilogue = problem.m, problem.n, problem.k, problem.total, problem.epilogue
    own, tall, (rows, wide) = plan.own, plan.tall, plan.own.shape
    depth = ceil(k / plan.step) * plan.step
    whole = depth // LONG_SUM * LONG_SUM if total.is_float and is_long(depth) else 0

    @tc.function
    def part_of(a: Any, panel: Any, row: Any, first: Any, q: Any, steps: Any) -> Any:
        """The sums of some steps of k; their columns begin at column `first` of the panel."""
        acc = tc.tile(total, own, 0)
        if depth == k and row + rows <= m:
            tc.mma(
                acc, a[row : row + rows, q : q + steps], panel[q : q + steps, first : first + wide]
            )
        else:
            edge = tc.load((rows, steps), lambda i, p: a[row + i, q + p], fill=0)
            tc.mma(acc, edge, panel[q : q + steps, first : first + wide])
        return acc

    @tc.function
    def summed(a: Any, panel: Any, row: Any, first: Any) -> Any:
        if whole:
            sums = tc.shared(total[own.shape])
            for i, j in own:
                sums[i, j] = 0
            for q in range(0, whole, LONG_SUM):
                acc = part_of(a, panel, row, first, q, LONG_SUM)
                for i, j in own:
                    sums[i, j] += acc[i, j]
            if whole < depth:
                acc = part_of(a, panel, row, first, whole, depth - whole)
                for i, j in own:
                    sums[i, j] += acc[i, j]
            return sums
        else:
            return part_of(a, panel, row, first, 0, depth)

    @tc.function
    def tiles(a: Any, panel: Any, further: Any, c: Any, row: Any, col: Any, first: Any) -> Any:
        """The tiles of a block; its columns begin at column `first` of the panel."""
        for r in range(0, tall, rows):
            if row + r < m:
                sums = summed(a, panel, row + r, first)
                for i, j in own:
                    if row + r + i < m and col + j < n:
                        c[row + r + i, col + j] = epilogue(
                            sums[i, j], further, col + j, (row + r + i, col + j)
                        )

    @tc.function
    def blocks(a: Any, b: Any, further: Any, c: Any) -> Any:
        for row, col in tc.tiles((m, n), by=(tall, wide), order=(1, 0)):
            if problem.packed:
                tiles(a, b, further, c, row, col, col)
            else:
                panel = tc.load((depth, wide), lambda q, j: b[q, col + j], fill=0)
                tiles(a, panel, further, c, row, col, 0)

    packed = packed_type(problem, plan) if problem.packed else None
    return problem.kernel(own.workers, blocks, packed)
