"""Products with quantized weights on GPUs: weights become floats on their way to shared memory.

A block is many warps around a shared memory, through which both operands go a few steps of k at a time. A worker takes
neighbouring weights of a row as one word; the matrix instruction sees floats of a's type.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import f32
from taskc.kernels.quantized.plan import Tiles
from taskc.kernels.quantized.problem import Problem


def tiles(problem: Problem, plan: Tiles) -> tc.KernelDefinition:
    m, n, k, group = problem.m, problem.n, problem.k, problem.group
    own, depth = plan.own, plan.depth
    tall, wide = own.shape
    weight, epilogue = problem.weight, problem.of_sums.function

    @tc.function
    def blocks(a: Any, b: Any, scales: Any, zeros: Any, further: Any, c: Any) -> Any:
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=depth, stages=plan.stages):
                left = tc.load(a[row : row + tall, p : p + depth])
                right = tc.load(
                    (depth, wide),
                    lambda q, j: weight(
                        b, scales, zeros, (p + q, col + j), ((p + q) // group, col + j)
                    ).to(problem.dtype),
                    fill=0,
                )
                tc.mma(acc, left, right)
            for i, j in own:
                if row + i < m and col + j < n:
                    at = row + i, col + j
                    c[at] = epilogue(acc[i, j], further, col + j, at)

    return problem.kernel(own.workers, blocks)
