"""Matrices turned on GPUs that have short rows on one side, which end within an access: an image's 49 pixels.

Rows beside each other are one run of memory, which whole accesses take as it lies. A run goes through shared
memory, where each element is found by its row; the other side is read or written by rows of its own.
"""

from __future__ import annotations

from math import ceil

import taskc as tc
from taskc import DType, KernelDefinition, Mapping, TensorType, auto_map, repeat, spatial
from taskc.kernels.machine_facts import GPU
from taskc.kernels.transpose.plan import Runs
from taskc.kernels.transpose.problem import Problem


def runs(problem: Problem, plan: Runs) -> KernelDefinition:
    return (_read_as_runs if plan.is_read else _written_as_runs)(problem, plan.rows)


def _in_runs(type: TensorType) -> TensorType:
    first, second, height, broad = type.shape
    return type.reshape(first, second, height * broad)


def _pieces(count: int, broad: int, dtype: DType) -> tuple[Mapping, Mapping]:
    """Who has which part of a run of so many rows, and of the same rows turned."""
    vector = GPU.access_bytes // dtype.nbytes
    run = auto_map((count * broad,), workers=GPU.block_workers, vector=vector)
    across = count // vector
    down = GPU.block_workers // across
    return run, repeat(ceil(broad / down), 1) * spatial(down, across) * repeat(1, vector)


def _read_as_runs(problem: Problem, count: int) -> KernelDefinition:
    dtype, made = problem.dtype, problem.made
    height, broad = problem.given.shape[2:]
    run, transposed = _pieces(count, broad, dtype)
    given = _in_runs(problem.given)

    @tc.kernel(workers=GPU.block_workers)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, p, row in tc.tiles(made.shape, by=(1, 1, broad, count)):
            rows = tc.shared(dtype[count * broad])
            for e in run:
                if row * broad + e < height * broad:
                    rows[e] = x[a, b, row * broad + e]
            part = tc.tile(dtype, transposed, problem.outside)
            for j, i in transposed:
                if row + i < height and j < broad:
                    part[j, i] = rows[i * broad + j]
            for j, i in transposed:
                if row + i < height and j < broad:
                    y[a, b, p + j, row + i] = part[j, i]

    return transpose


def _written_as_runs(problem: Problem, count: int) -> KernelDefinition:
    dtype, given = problem.dtype, problem.given
    height, broad = given.shape[2:]
    run, transposed = _pieces(count, height, dtype)
    made = _in_runs(problem.made)

    @tc.kernel(workers=GPU.block_workers)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, first in tc.tiles(made.shape, by=(1, 1, count * height)):
            rows = tc.shared(dtype[count * height])
            part = tc.tile(dtype, transposed, problem.outside)
            for i, j in transposed:
                if i < height and first // height + j < broad:
                    part[i, j] = x[a, b, i, first // height + j]
            for i, j in transposed:
                if i < height:
                    rows[j * height + i] = part[i, j]
            for e in run:
                if first + e < height * broad:
                    y[a, b, first + e] = rows[e]

    return transpose
