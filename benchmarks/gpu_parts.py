"""Kernels that use one part of the hardware and nothing else: what is wrong with it shows here first."""

from __future__ import annotations

from typing import Any

from gpu_kernels import Size

import taskc as tc
from taskc import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, repeat, tf32, u8
from taskc.kernels.matmul import Problem, Tiling, build
from taskc.kernels.matmul.plan_gpu import candidate_tilings
from taskc.tune.space import least

Bound = tuple[float, float]

# Operands, sum and result. Those of 8 and 32 bits lie along k.
WGMMA = (
    *((bf16, f32, bf16), (f16, f32, f16), (tf32, f32, f32), (i8, i32, i32)),
    *((f8e4m3, f32, f32), (f8e5m2, f32, f32)),
)
MMA_SYNC = (*WGMMA[:4], (u8, i32, i32), *WGMMA[4:])
_COLUMNS = 64  # of a warpgroup's fragment


def moved_by_bulk_copies(machine: Any, m: int, n: int) -> Any:
    """y[i, j] = x[i, j] + (i % 64 * 32 + j % 32), tile by tile, by TMA both ways, in lines of 128 bytes.

    What is added depends on the place: an exchange of units on one way that the other undoes would show.
    """
    tall, wide = 64, 32

    @tc.cuda.kernel(workers=128, target="sm_90a")
    def moved(x: f32[m, n], y: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            near = tc.shared(f32[tall, wide], swizzle=128)
            far = tc.shared(f32[tall, wide], swizzle=128)
            full = tc.cuda.barriers(1)
            w = tc.worker()
            if w == 0:
                tc.cuda.mbarrier_init(full[0], 1)
            tc.sync()
            if w == 0:
                tc.cuda.mbarrier_expect(full[0], tall * wide * 4)
                tc.cuda.tma_load(near[0, 0], x[row, col], full[0], tall, wide)
            tc.cuda.mbarrier_wait(full[0], 0)
            for i, j in repeat(tall // 4, 1).spatial(4, wide):
                far[i, j] = near[i, j] + (i * wide + j).to(f32)
            tc.cuda.fence_proxy_async()
            tc.sync()
            if w == 0:
                tc.cuda.tma_store(y[row, col], far[0, 0], tall, wide)
                tc.cuda.tma_commit()
                tc.cuda.tma_wait(0)

    return moved


def moved_reference(x: Any) -> Any:
    import numpy as np

    i, j = np.indices(x.shape)
    return x + (i % 64 * 32 + j % 32)


def is_across(dtype: DType) -> bool:
    """Whether b lies as [k, n], which only instructions for 16 bits take."""
    return dtype.nbytes == 2


def by_wgmma(dtype: DType, total: DType, result: DType, machine: Any, *size: int) -> Any:
    """By the instruction that runs beside its workers, with ordinary copies, stores and barriers around it."""
    rows = [row for row in machine.instructions(dtype, dtype, total) if row.asynchronous]
    fragment = next(row.accumulator_fragment for row in rows if row.shape[1] == _COLUMNS)
    tiling = Tiling(fragment, 128 // dtype.nbytes, 3)
    return build(_problem(dtype, total, result, *size), tiling, machine)


def by_mma_sync(dtype: DType, total: DType, result: DType, machine: Any, *size: int) -> Any:
    """By the instruction that older processors have, too."""
    older, problem = tc.machine("sm_89"), _problem(dtype, total, result, *size)
    return build(problem, least(candidate_tilings, problem, older), older)


def _problem(dtype: DType, total: DType, result: DType, m: int, n: int, k: int) -> Problem:
    return Problem(
        m=m, n=n, k=k, dtype=dtype, right=dtype, total=total, result=result,
        transpose_b=not is_across(dtype),
    )  # fmt: skip


def product(dtype: DType, a: Any, b: Any) -> Any:
    return a @ (b if is_across(dtype) else b.T)


def of_sums(dtype: DType, result: DType, size: Size) -> Bound:
    """One rounding of the result, and what the tensor cores cut off as they add, of sums that grow as √k.

    Of 8-bit floats wgmma keeps less: see `of_8_bits`.
    """
    k = size[2]
    if result is i32:
        return 0.0, 0.0
    rounding = {bf16: 2.0**-8, f16: 2.0**-10}.get(result, 2.0**-20)
    if dtype.nbytes == 1:
        return rounding, of_8_bits(k)
    return rounding, k * (2.0**-17 if dtype is tf32 else 2.0**-18)


def of_8_bits(k: int) -> float:
    """The error that Hopper's tensor cores may make in sums of k products of normally distributed 8-bit floats.

    They keep 13 bits behind the first of the largest of what it adds in a step, 32 products and the sum before: each
    loses less than 2⁻¹³ of that, half of it on average, with its sign. A model of it in NumPy stays below
    k * 2⁻¹³ from k = 64 to 4096, nearly; this is four times that. f32 would be below k * 2⁻²¹.
    """
    return k * 2.0**-11
