"""GEMV, products of a few vectors and a matrix, on GPUs: what counts is that the matrix is read once, and fast.

The vectors are rows of a, the matrix is b, and a column of it goes into each element of c. Or the vectors
are columns of b and the matrix is a, whose rows are called columns here.

    down   where neighbours in memory are neighbouring columns, workers beside each other have them, of
           steps of k of their own
    along  where they are of one column, a warp walks along it

Either way a worker reads 16 bytes at a time, has several such accesses under way before it multiplies, and
what workers have found is folded in the end. Where the blocks of all columns are too few to keep the memory
busy, k is cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import Machine, auto_map
from taskc.kernels.machine_facts import GPU
from taskc.kernels.matmul.plan_gpu import Vectors, are_rows
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.matmul.split_k import in_parts

Function = Callable[..., Any]


def gemv(
    problem: Problem, plan: Vectors, machine: Machine
) -> tc.KernelDefinition | tc.ProgramDefinition:
    k, epilogue, is_row = problem.k, problem.epilogue, are_rows(problem)
    count, length = (problem.m, problem.n) if is_row else (problem.n, problem.m)
    columns, steps = plan.matrix.shape
    parts = plan.parts
    per_part = ceil(k / (parts * steps)) * steps if parts > 1 else k
    lines = auto_map((count, columns), workers=GPU.block_workers)
    summed = _summed(problem, plan)

    @tc.function
    def place(i: Any, j: Any) -> Any:
        """Where what vector i and column j give belongs in c."""
        return (i, j) if is_row else (j, i)

    @tc.function
    def place_of_part(part: Any, i: Any, j: Any) -> Any:
        return (part, i, j) if is_row else (part, j, i)

    @tc.function
    def partial(a: Any, b: Any, sums: Any) -> Any:
        for part, col in tc.tiles((parts, length), by=(1, columns)):
            made = summed(a, b, col, part * per_part, min((part + 1) * per_part, k))
            for i, j in lines:
                if col + j < length:
                    sums[place_of_part(part, i, col + j)] = made[i, j]

    @tc.function
    def whole(a: Any, b: Any, further: Any, c: Any) -> Any:
        for col in tc.tiles(length, by=columns):
            made = summed(a, b, col, 0, k)
            for i, j in lines:
                if col + j < length:
                    at = place(i, col + j)
                    c[at] = epilogue(made[i, j], further, col + j if is_row else i, at)

    if parts > 1:
        return in_parts(problem, parts, GPU.block_workers, partial, machine)
    return problem.kernel(GPU.block_workers, whole)


def _summed(problem: Problem, plan: Vectors) -> Function:
    """The sums of a block's columns over k from `first` to `last`, in shared memory."""
    total, by, is_row = problem.total, problem.by, are_rows(problem)
    count, length = (problem.m, problem.n) if is_row else (problem.n, problem.m)
    kinds = problem.right, problem.dtype
    kind, few = kinds if is_row else kinds[::-1]
    columns, steps = plan.matrix.shape
    walkers = plan.sums.shape[2]
    left_at, right_at = problem.left_at, problem.right_at

    @tc.function
    def vector_at(a: Any, b: Any, i: Any, q: Any) -> Any:
        return left_at(a, i, q) if is_row else right_at(b, q, i)

    @tc.function
    def matrix_at(a: Any, b: Any, q: Any, j: Any) -> Any:
        return right_at(b, q, j) if is_row else left_at(a, j, q)

    @tc.function
    def multiplied(x: Any) -> Any:
        return x.to(total) if by is None else x.to(by).to(total)

    @tc.function
    def summed(a: Any, b: Any, col: Any, first: Any, last: Any) -> Any:
        sums = tc.tile(total, plan.sums, 0)
        for step in range(first, last, steps):
            matrix, vectors = tc.tile(kind, plan.matrix, 0), tc.tile(few, plan.vectors, 0)
            for j, q in plan.matrix:
                if step + q < last and col + j < length:
                    matrix[j, q] = matrix_at(a, b, step + q, col + j)
            for i, q in plan.vectors:
                if step + q < last:
                    vectors[i, q] = vector_at(a, b, i, step + q)
            for i, j, q in plan.products:
                x, y = multiplied(vectors[i, q]), multiplied(matrix[j, q])
                sums[i, j, q // plan.run % walkers] += x * y
        folded = tc.reduce(sums, 2, "+")
        made = tc.shared(total[count, columns])
        for i, j in folded.mapping:
            made[i, j] = folded[i, j]
        return made

    return summed
