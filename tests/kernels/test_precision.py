"""The types of sums and results that a call doesn't say, and sums that are long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, f64, i8, i16, i32, i64, tf32, u8
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import batch_matmul, matmul, product
from taskc.kernels.signatures import LONG_SUM, types_of_products


@pytest.mark.parametrize(
    ("dtype", "total", "result"),
    [
        (f16, f32, f16), (bf16, f32, bf16), (tf32, f32, f32), (f32, f32, f32), (f64, f64, f64),
        (i8, i32, i32), (u8, i32, i32), (i16, i32, i32), (i32, i32, i32), (i64, i64, i64),
    ],
)  # fmt: skip
def test_types_that_are_not_said(dtype: DType, total: DType, result: DType) -> None:
    assert types_of_products(dtype) == (total, result)
    assert types_of_products(dtype, f64) == (f64, f64)
    assert types_of_products(dtype, f64, f32) == (f64, f32)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_sums_of_16_bits_are_wide_in_every_template(dtype: DType) -> None:
    """Ones that are summed in bf16 stop at 256, in f16 at 2,048."""
    k = 4096
    a, b = np.ones((2, k), dtype.numpy), np.ones((k, 3), dtype.numpy)
    whole = np.full((2, 3), k, dtype.numpy)
    kernels: list[tuple[Any, list[Any], Any]] = [
        (matmul(2, 3, k, dtype=dtype), [a, b], whole),
        (product(2, 3, k, dtype=dtype), [a, b], whole),
        (batch_matmul(((2,), ()), 2, 3, k, dtype=dtype), [np.stack([a, a]), b], [whole, whole]),
        (batch_matmul(((2,), ()), 2, 3, k, dtype=dtype, result=f32), [np.stack([a, a]), b], [whole] * 2),
        (
            convolution(1, 1, 2, k, 3, size=1, dtype=dtype),
            [a[None, None], b.T[:, None, None].copy()], whole[None, None],
        ),
    ]  # fmt: skip
    for kernel, arguments, expected in kernels:
        np.testing.assert_array_equal(kernel(*arguments), np.asarray(expected))


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("options", [{}, {"transpose_b": True}, {"packed": True}], ids=str)
def test_long_sums_lose_little(m: int, options: dict[str, bool]) -> None:
    """Of 0.1: each step rounds to the same side. The bound is that of as many steps as are summed in turn."""
    k = 16 * LONG_SUM + 5
    a, b = np.full((m, k), 1, np.float32), np.full((k, 17), 0.1, np.float32)
    kernel = matmul(m, 17, k, **options)  # type: ignore[arg-type]
    right = b.T.copy() if "transpose_b" in options else kernel.pack(b) if options else b
    found = kernel(a, right).astype(np.float64)
    exact, bound = float(np.float32(0.1)) * k, LONG_SUM * 2.0**-24
    np.testing.assert_allclose(found, exact, rtol=bound)
    assert abs(np.add.accumulate(b[:, 0])[-1] - exact) > 2 * bound * exact


def test_long_sums_of_an_extent_that_a_call_says() -> None:
    k = 3 * LONG_SUM + 1
    kernel = matmul(9, 5, tc.dim("k"))
    found = kernel(np.full((9, k), 1, np.float32), np.full((k, 5), 0.1, np.float32))
    np.testing.assert_allclose(found, 0.1 * k, rtol=LONG_SUM * 2.0**-24)
