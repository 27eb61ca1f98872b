"""GEMM of a few rows on processors, a vector and a matrix (GEMV) among them: what counts is how b is read.

    b[k, n]  a few rows of b at a time go by side by side, from end to end; the sums lie in the nearest
             caches, and each is read and written once for these steps of k
    b[n, k]  workers walk along k together, in a few rows of b, and what each of them has found is
             added up at the end

So the sums of the second kind go over k in another order than those of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import repeat, spatial
from taskc.kernels.matmul.plan import MOST_ROWS, FewRows
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.precision import LONG_SUM, is_long

Function = Callable[..., Any]


def few_rows_kernel(problem: Problem, plan: FewRows) -> tc.KernelDefinition:
    block = few_rows(problem, plan)

    @tc.function
    def blocks(a: Any, b: Any, further: Any, c: Any) -> Any:
        for col in tc.tiles(problem.n, by=plan.columns):
            block(a, b, further, c, col)

    return problem.kernel(plan.lanes, blocks)


def few_rows(problem: Problem, plan: FewRows) -> Function:
    """What a block does, for m <= MOST_ROWS: so many columns from `col` on."""
    return _along_rows(problem, plan) if problem.transpose_b else _down_columns(problem, plan)


def _down_columns(problem: Problem, plan: FewRows) -> Function:
    m, n, k, total = problem.m, problem.n, problem.k, problem.total
    operand, epilogue = problem.operand, problem.epilogue
    columns, depth, lanes = plan.columns, plan.depth, plan.lanes
    rows = m if isinstance(m, int) else MOST_ROWS
    whole = k // depth * depth
    is_constant, is_split, part = isinstance(k, int), is_long(k), LONG_SUM // depth * depth
    line = spatial(lanes)

    @tc.function
    def add(a: Any, b: Any, sums: Any, col: Any, first: Any, steps: Any) -> Any:
        """The products of some steps of k, for all columns of a block."""
        for v in range(0, columns, 2 * lanes):
            for i in range(m):
                for j in repeat(2) * line:
                    if col + v + j < n:
                        value = sums[i, v + j]
                        for q in tc.static(range(steps)):
                            value += operand(a, (), i, first + q) * b[first + q, col + v + j].to(
                                total
                            )
                        sums[i, v + j] = value

    @tc.function
    def few_rows(a: Any, b: Any, further: Any, c: Any, col: Any) -> Any:
        sums = tc.shared(total[rows, columns + lanes])  # rows in different sets of a cache
        for i in range(m):
            for j in repeat(columns // lanes) * line:
                sums[i, j] = 0
        if is_split:
            wholes = tc.shared(total[rows, columns + lanes])
            for i in range(m):
                for j in repeat(columns // lanes) * line:
                    wholes[i, j] = 0
            for first in range(0, whole, part):
                for q in range(first, min(first + part, whole), depth):
                    add(a, b, sums, col, q, depth)
                for i in range(m):
                    for j in repeat(columns // lanes) * line:
                        wholes[i, j] += sums[i, j]
                        sums[i, j] = 0
            for i in range(m):
                for j in repeat(columns // lanes) * line:
                    sums[i, j] = wholes[i, j]
        else:
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
                    c[i, col + j] = epilogue(sums[i, j], further, col + j, (i, col + j))

    return few_rows


def _along_rows(problem: Problem, plan: FewRows) -> Function:
    m, n, k, total = problem.m, problem.n, problem.k, problem.total
    operand, epilogue = problem.operand, problem.epilogue
    own = repeat(*plan.together) * spatial(1, 1, plan.lanes)
    group, rows, step = own.shape

    @tc.function
    def few_rows(a: Any, b: Any, further: Any, c: Any, col: Any) -> Any:
        for p in range(0, plan.columns, rows):
            for row in range(0, m, group):
                sums = tc.tile(total, own, 0)
                for q in range(0, k, step):
                    for i, j, s in own:
                        if row + i < m and col + p + j < n and q + s < k:
                            value = b[col + p + j, q + s].to(total)
                            sums[i, j, s] += operand(a, (), row + i, q + s) * value
                dots = tc.reduce(sums, 2, "+")
                for i, j in dots.mapping:
                    if row + i < m and col + p + j < n:
                        c[row + i, col + p + j] = epilogue(
                            dots[i, j], further, col + p + j, (row + i, col + p + j)
                        )

    return few_rows
