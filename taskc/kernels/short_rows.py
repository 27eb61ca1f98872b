"""Matrices turned on GPUs that have short rows on one side, which end within an access: an image's 49 pixels.

Rows beside each other are one run of memory, which whole accesses take as it lies. A run goes through shared
memory, where each element is found by its row; the other side is read or written by rows of its own.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, TensorType, auto_map, boolean, repeat, spatial
from taskc.kernels.machine_facts import GPU
from taskc.kernels.owners import width


def turn_short_rows(
    given: TensorType, places: tuple[int, ...], made: TensorType
) -> KernelDefinition | None:
    """The last two axes of four exchanged; None where that isn't asked for, or neither side is such."""
    *_, height, broad = given.shape
    if places != (0, 1, 3, 2) or not (isinstance(height, int) and isinstance(broad, int)):
        return None
    if _are_short(broad, given.dtype) and _are_whole(height, given.dtype):
        return _read_as_runs(given, made)
    if _are_short(height, given.dtype) and _are_whole(broad, given.dtype):
        return _written_as_runs(given, made)
    return None


def _are_short(extent: int, dtype: DType) -> bool:
    return width(extent, dtype) * dtype.nbytes < GPU.access_bytes // 2 and (
        0 < GPU.run_rows * extent * dtype.nbytes <= GPU.longest_run_bytes
    )


def _are_whole(extent: int, dtype: DType) -> bool:
    return extent > 0 and extent * dtype.nbytes % GPU.access_bytes == 0


def _in_runs(type: TensorType) -> TensorType:
    first, second, height, broad = type.shape
    return type.reshape(first, second, height * broad)


def _pieces(broad: int, dtype: DType) -> tuple[Any, Any]:
    """Who has which part of a run of rows, and of the same rows turned."""
    vector = GPU.access_bytes // dtype.nbytes
    run = auto_map((GPU.run_rows * broad,), workers=GPU.block_workers, vector=vector)
    beside = GPU.run_rows // vector
    down = GPU.block_workers // beside
    return run, repeat(-(-broad // down), 1) * spatial(down, beside) * repeat(1, vector)


def _read_as_runs(given: TensorType, made: TensorType) -> KernelDefinition:
    dtype = given.dtype
    height, broad = given.shape[2:]
    run, turned = _pieces(broad, dtype)
    outside = False if dtype is boolean else 0
    runs = _in_runs(given)

    @tc.kernel(workers=GPU.block_workers)
    def transpose(x: runs, y: tc.out[made]):
        for a, b, p, row in tc.tiles(made.shape, by=(1, 1, broad, GPU.run_rows)):
            rows = tc.shared(dtype[GPU.run_rows * broad])
            for e in run:
                if row * broad + e < height * broad:
                    rows[e] = x[a, b, row * broad + e]
            part = tc.tile(dtype, turned, outside)
            for j, i in turned:
                if row + i < height and j < broad:
                    part[j, i] = rows[i * broad + j]
            for j, i in turned:
                if row + i < height and j < broad:
                    y[a, b, p + j, row + i] = part[j, i]

    return transpose


def _written_as_runs(given: TensorType, made: TensorType) -> KernelDefinition:
    dtype = given.dtype
    height, broad = given.shape[2:]
    run, turned = _pieces(height, dtype)
    outside = False if dtype is boolean else 0
    runs = _in_runs(made)

    @tc.kernel(workers=GPU.block_workers)
    def transpose(x: given, y: tc.out[runs]):
        for a, b, first in tc.tiles(runs.shape, by=(1, 1, GPU.run_rows * height)):
            rows = tc.shared(dtype[GPU.run_rows * height])
            part = tc.tile(dtype, turned, outside)
            for i, j in turned:
                if i < height and first // height + j < broad:
                    part[i, j] = x[a, b, i, first // height + j]
            for i, j in turned:
                if i < height:
                    rows[j * height + i] = part[i, j]
            for e in run:
                if first + e < height * broad:
                    y[a, b, first + e] = rows[e]

    return transpose
