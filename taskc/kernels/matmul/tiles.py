"""GEMM where a block is many workers around a shared memory: that of GPUs.

    own = warps * repeat * fragment

says who has which part of a block's result: each warp has a rectangle of fragments. The fragment is that of
the matrix instruction that the machine has for these types, or, where it has none, a square of registers
that are added to by fused multiply-adds. Both operands go through shared memory, a few steps of k ahead.

Where an instruction runs beside its workers, warpgroups multiply and a producer loads for them; then blocks
run over several tiles, results are stored as whole tiles, and of the largest tiles two blocks share a load of
b. The text is the same, but for that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import Machine
from taskc.kernels.matmul.plan_gpu import Tiling
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.matmul.split_k import in_parts

Function = Callable[..., Any]


def tiles(
    problem: Problem, plan: Tiling, machine: Machine
) -> tc.KernelDefinition | tc.ProgramDefinition:
    if plan.parts == 1:
        return problem.kernel(plan.own.workers, _whole(problem, plan))
    (high, broad), own, k = plan.block, plan.own, problem.k
    summed, swapped_back = _summed(problem, plan), _swapped_back(plan)
    steps = ceil(k / (plan.parts * plan.depth)) * plan.depth
    shape = plan.parts, problem.m, problem.n

    @tc.function
    def blocks(a: Any, b: Any, sums: Any) -> Any:
        for part, row, col in tc.tiles(shape, by=(1, high, broad), persistent=plan.specialize):
            acc = summed(a, b, row, col, part * steps, steps)
            if plan.swap_ab:
                made = swapped_back(acc)
                tc.store(sums[part, row : row + high, col : col + broad], made)
            else:
                tc.store(sums[part, row : row + high, col : col + broad], acc)

    return in_parts(problem, plan.parts, own.workers, blocks, machine)


def _whole(problem: Problem, plan: Tiling) -> Function:
    """Blocks that go through all of k."""
    m, n, k, epilogue = problem.m, problem.n, problem.k, problem.epilogue
    (high, broad), own = plan.block, plan.own
    summed, swapped_back = _summed(problem, plan), _swapped_back(plan)

    @tc.function
    def inside(i: Any, j: Any) -> Any:
        """Of what lies behind an edge, the last element before it."""
        return min(i, m - 1), min(j, n - 1)

    @tc.function
    def store(c: Any, acc: Any, further: Any, row: Any, col: Any) -> Any:
        if plan.swap_ab:
            done = tc.tile(problem.result, own)
            for j, i in own:
                done[j, i] = epilogue(
                    acc[j, i], further, min(col + j, n - 1), inside(row + i, col + j)
                )
            made = swapped_back(done)
            tc.store(c[row : row + high, col : col + broad], made)
        elif plan.specialize:
            done = tc.tile(problem.result, own)
            for i, j in own:
                done[i, j] = epilogue(
                    acc[i, j], further, min(col + j, n - 1), inside(row + i, col + j)
                )
            tc.store(c[row : row + high, col : col + broad], done)
        else:
            for i, j in own:
                if row + i < m and col + j < n:
                    c[row + i, col + j] = epilogue(acc[i, j], further, col + j, (row + i, col + j))

    @tc.function
    def whole(a: Any, b: Any, further: Any, c: Any) -> Any:
        for row, col in tc.tiles(
            (m, n),
            by=plan.block,
            order=("grouped", plan.group),
            persistent=plan.specialize,
            cluster=plan.cluster,
        ):
            acc = summed(a, b, row, col, 0, k)
            store(c, acc, further, row, col)

    return whole


def _swapped_back(plan: Tiling) -> Function:
    """c's part, of its transpose."""

    @tc.function
    def swapped_back(done: Any) -> Any:
        made = tc.shared(done.dtype[plan.block])
        for j, i in plan.own:
            made[i, j] = done[j, i]
        return made

    return swapped_back


def _summed(problem: Problem, plan: Tiling) -> Function:
    """A tile's sums over `steps` of k from `first` on."""
    multiply = _multiply(problem, plan)

    @tc.function
    def summed(a: Any, b: Any, row: Any, col: Any, first: Any, steps: Any) -> Any:
        acc = tc.tile(problem.total, plan.own, 0)
        for p in tc.pipeline(
            steps,
            by=plan.depth,
            stages=plan.stages,
            specialize=plan.specialize,
            turns="tiles" if plan.consumers > 1 else None,
        ):
            if plan.swap_ab:
                multiply(acc, b, a, col, row, first + p)
            else:
                multiply(acc, a, b, row, col, first + p)
        return acc

    return summed


def _multiply(problem: Problem, plan: Tiling) -> Function:
    """What one step adds: each operand lies as it is given."""
    (tall, wide), depth, by = plan.own.shape, plan.depth, problem.by
    left_along_k, right_along_k = not problem.transpose_a, problem.transpose_b
    gathered = problem.gathered and problem.gathered.load(plan.block[0], depth)
    gathers: tuple[Any, Any] = (gathered, None)
    if plan.swap_ab:
        left_along_k, right_along_k, gathers = right_along_k, left_along_k, gathers[::-1]

    @tc.function
    def staged(x: Any, first: Any, q: Any, width: Any, along_k: Any, load: Any) -> Any:
        """Some rows of an operand, or columns, and a step of k."""
        if load is not None:
            return load(x, first, q)
        elif along_k:
            return tc.load(x[first : first + width, q : q + depth])
        else:
            return tc.load(x[q : q + depth, first : first + width])

    @tc.function
    def multiply(acc: Any, a: Any, b: Any, row: Any, col: Any, q: Any) -> Any:
        sa = staged(a, row, q, tall, left_along_k, gathers[0])
        sb = staged(b, col, q, wide, right_along_k, gathers[1])
        left = sa if left_along_k else sa.T
        tc.mma(acc, left, sb.T if right_along_k else sb, by=by)

    return multiply
