"""How far results are from what should come out, and how far they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, f64, i8, i32, repeat
from taskc.kernels.matmul import matmul, product
from taskc.kernels.reductions import reduction
from taskc.kernels.transpose import transpose
from taskc.tune.operands import operands_of, tolerance, worst_error, write_operands


@pytest.mark.parametrize(
    ("expected", "result", "error"),
    [
        ([3.0, 4.0, 0.0, 0.0], [3.0, 4.5, 0.0, 0.0], 0.2),
        ([0.0, 0.0], [0.0, 0.5], 0.5),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [1.0, 1.0], np.inf),
        ([1.0, 1.0], [1.0, np.nan], np.inf),
    ],
)
def test_errors(tmp_path: Path, expected: list[float], result: list[float], error: float) -> None:
    size = len(expected)

    @tc.kernel(workers=1)
    def copy(x: f64[size], y: tc.out[f64[size]]):
        for (i,) in repeat(size):
            y[i] = x[i]

    write_operands(tmp_path, [np.array(result)], [np.array(expected)])
    operands = operands_of(copy, tmp_path)
    operands.call_of(copy)()
    assert worst_error(copy, operands, tmp_path)[0] == pytest.approx(error)


@pytest.mark.parametrize(
    ("dtype", "total", "result", "allowed"),
    [
        (f64, f64, f64, 1024 * 2.0**-52),
        (f32, f32, f32, 1024 * 2.0**-23),
        (f16, f32, f32, 1024 * 2.0**-23),
        (f16, f32, f16, 16 * 2.0**-10),
        (bf16, f32, bf16, 16 * 2.0**-7),
        (f16, f16, f16, 256 * 2.0**-10),
        (bf16, bf16, bf16, 0.9),
    ],
)
def test_sums_may_be_off_by_more_than_what_is_rounded(
    dtype: DType, total: DType, result: DType, allowed: float
) -> None:
    made = matmul(16, 16, 16, dtype=dtype, total=total, result=result)
    assert tolerance(made, result) == allowed


def test_what_is_moved_or_whole_may_be_off_by_less() -> None:
    assert tolerance(transpose((8, 8)), f32) == 16 * 2.0**-23
    assert tolerance(product(8, 16, 8, dtype=i8), i32) == 0
    assert tolerance(reduction("sum", (8, 100), (1,)), f32) == 1024 * 2.0**-23


def error_of_product(
    folder: Path, dtype: DType, *, is_positive: bool, without: int = 0
) -> tuple[float, float]:
    """Of a sum of 4096 products, held to one that has so many more."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((32, 4096)), random.standard_normal((4096, 32))
    if is_positive:
        a, b = abs(a), abs(b)
    inputs: list[Any] = [a.astype(dtype.numpy), b.astype(dtype.numpy)]
    exact = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    exact += random.standard_normal((32, without)) @ random.standard_normal((without, 32))
    kernel = matmul(32, 32, 4096, dtype=dtype)
    write_operands(folder, inputs, [exact])
    operands = operands_of(kernel, folder)
    operands.call_of(kernel)()
    return worst_error(kernel, operands, folder)


@pytest.mark.parametrize("dtype", [bf16, f16, f32])
@pytest.mark.parametrize("is_positive", [False, True])
def test_long_sums_are_right(tmp_path: Path, dtype: DType, is_positive: bool) -> None:
    error, allowed = error_of_product(tmp_path, dtype, is_positive=is_positive)
    assert error <= allowed


@pytest.mark.parametrize("dtype", [f16, f32])
def test_sums_that_lack_a_block_are_wrong(tmp_path: Path, dtype: DType) -> None:
    error, allowed = error_of_product(tmp_path, dtype, is_positive=False, without=64)
    assert error > allowed
