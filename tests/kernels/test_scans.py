"""Cumulative sums and products against NumPy, and against the simulator."""

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.kernels.scans import cumprod, cumsum


def expected(
    x: np.ndarray, axis: int, *, exclusive: bool, reverse: bool, fold: Any = np.add
) -> np.ndarray:
    """By NumPy, which folds in the same order."""
    x = np.flip(x, axis) if reverse else x
    y = fold.accumulate(x, axis, dtype=x.dtype)
    if exclusive:
        first = np.full_like(x.take([0], axis), fold.identity)
        y = np.concatenate([first, y.take(range(x.shape[axis] - 1), axis)], axis)
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize("n", [1, 17, 129])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_sizes(n: int, exclusive: bool, reverse: bool, same_bits: Any) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    for shape, axis in (((3, n), -1), ((n, 3), 0), ((2, n, 17), 1)):
        x = np.random.default_rng(n).standard_normal(shape).astype(np.float32)
        y = same_bits(lambda shape=shape, axis=axis: cumsum(shape, axis, **options), x)
        np.testing.assert_array_equal(y, expected(x, axis, **options), strict=True)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_products(exclusive: bool, reverse: bool, same_bits: Any) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    for dtype in (np.float32, np.int32):  # integers wrap
        for shape, axis in (((3, 37), -1), ((37, 3), 0), ((2, 1, 17), 1)):
            x = np.random.default_rng(0).integers(-7, 8, shape).astype(dtype)
            given = tc.f32 if dtype is np.float32 else tc.i32
            y = same_bits(lambda: cumprod(shape, axis, dtype=given, **options), x)
            np.testing.assert_array_equal(
                y, expected(x, axis, fold=np.multiply, **options), strict=True
            )


@pytest.mark.parametrize("dtype", [tc.i8, tc.u16, tc.i32, tc.i64, tc.f64])
def test_types(dtype: tc.DType, same_bits: Any) -> None:
    x = np.random.default_rng(3).integers(0, 100, (6, 35)).astype(dtype.numpy)
    y = same_bits(lambda: cumsum((6, 35), 1, dtype=dtype), x)
    assert np.array_equal(y, expected(x, 1, exclusive=False, reverse=False))


@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16], ids=str)
def test_numbers_of_16_bits_are_added_up_in_f32(dtype: tc.DType, same_bits: Any) -> None:
    x = np.full((3, 70), 1 / 3, np.float32).astype(dtype.numpy)
    y = same_bits(lambda: cumsum((3, 70), 1, dtype=dtype), x)
    assert np.array_equal(y, np.cumsum(x.astype(np.float32), 1).astype(dtype.numpy))


def test_any_size() -> None:
    m, n = tc.dim("m"), tc.dim("n")
    kernels = [cumsum((m, n), axis, reverse=axis == 1) for axis in (0, 1)]
    for shape in ((1, 1), (3, 17), (300, 5), (0, 4), (4, 0)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        for axis, kernel in enumerate(kernels):
            y = expected(x, axis, exclusive=False, reverse=axis == 1)
            assert np.array_equal(kernel(x), y)


def test_signs_of_zeros() -> None:
    x = np.array([-0.0, -0.0, 0.0, -0.0], np.float32)
    assert np.signbit(cumsum((4,), 0)(x)).tolist() == [True, True, False, False]
    assert not np.signbit(cumsum((4,), 0, exclusive=True)(x)).any()


def test_refusals() -> None:
    with pytest.raises(tc.CompileError, match="axis 2 is not one of 2"):
        cumsum((3, 4), 2)
    with pytest.raises(tc.CompileError, match="there is no sum of bool"):
        cumsum((3,), 0, dtype=tc.boolean)
    with pytest.raises(tc.CompileError, match="there is no prod of bool"):
        cumprod((3,), 0, dtype=tc.boolean)
