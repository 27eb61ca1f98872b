"""Division as C has it, powers of integers, signs and infinities, by Python's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.ir.rounding import convert

INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
FLOATS = (f16, bf16, f32, f64)


@pytest.fixture(params=["cpu", "sim"], autouse=True)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", request.param)


@tc.function
def truncated(a, b):
    return tc.truncdiv(a, b)


@tc.function
def remainder(a, b):
    return tc.fmod(a, b)


@tc.function
def power(a, b):
    return a**b


def applied(function: Callable[..., Any], a: np.ndarray, b: np.ndarray, dtype: DType, workers: int):
    count = a.size

    @tc.kernel(workers=workers)
    def kernel(a: dtype[count], b: dtype[count], y: tc.out[dtype[count]]):
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                if start + i < count:
                    y[start + i] = function(a[start + i], b[start + i])

    return kernel(a, b)


def pairs(dtype: DType, others: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    low, high = int(dtype.minimum), int(dtype.maximum)
    few = (low, low + 1, -100, -7, -3, -2, -1, 0, 1, 2, 3, 7, 100, high - 1, high)
    kept = [[n for n in numbers if low <= n <= high] for numbers in (few, (*few, *others))]
    a, b = np.meshgrid(*(np.array(numbers, dtype.numpy) for numbers in kept))
    return a.ravel().copy(), b.ravel().copy()


def wrapped(number: int, dtype: DType) -> int:
    return (number - int(dtype.minimum)) % 2**dtype.bits + int(dtype.minimum)


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_that_truncates(dtype: DType, workers: int) -> None:
    a, b = pairs(dtype, ())
    a, b = a[b != 0], b[b != 0]  # which the simulator reports
    quotients = [math.trunc(Fraction(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    expected = [wrapped(q, dtype) for q in quotients]
    assert applied(truncated, a, b, dtype, workers).tolist() == expected
    rests = [x - q * y for x, q, y in zip(a.tolist(), quotients, b.tolist(), strict=True)]
    assert applied(remainder, a, b, dtype, workers).tolist() == rests


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_remainders_of_floats(dtype: DType) -> None:
    numbers = [0.0, -0.0, 0.5, -0.5, 1.0, 2.5, -2.5, 3.0, -7.25, 100.0, 1e4, math.inf, -math.inf]
    numbers += [math.nan, dtype.smallest_normal, -dtype.smallest_normal / 2, float(dtype.maximum)]
    a, b = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    a, b = convert(a, f64, dtype), convert(b, f64, dtype)
    wide = [np.asarray(convert(x, dtype, f64)).tolist() for x in (a, b)]
    expected = [_fmod(x, y) for x, y in zip(*wide, strict=True)]
    found = convert(applied(remainder, a, b, dtype, 16), dtype, f64)
    np.testing.assert_array_equal(found, expected)
    is_number = ~np.isnan(found)
    assert (np.signbit(found) == np.signbit(expected))[is_number].all()


def _fmod(x: float, y: float) -> float:
    return math.nan if math.isinf(x) or y == 0 else math.fmod(x, y)


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers_of_integers(dtype: DType, workers: int) -> None:
    a, b = pairs(dtype, (4, 5, 10, 31, 33, 63, 64))
    expected = [_power(x, y, dtype) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert applied(power, a, b, dtype, workers).tolist() == expected


def _power(x: int, y: int, dtype: DType) -> int:
    if y < 0:
        return 0 if abs(x) != 1 else x ** (y % 2)
    return wrapped(pow(x, y, 2**dtype.bits), dtype)


@pytest.mark.parametrize("n", [0, 1, 3, 6, 13, -1, -2])
def test_powers_that_are_known(n: int) -> None:
    @tc.function
    def known(a, b):
        return a**n

    a, b = pairs(i16, ())
    assert applied(known, a, b, i16, 16).tolist() == [_power(x, n, i16) for x in a.tolist()]


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_signs(dtype: DType) -> None:
    @tc.function
    def sign(a, b):
        return tc.sign(a)

    if dtype.is_integer:
        a, b = pairs(dtype, ())
        assert applied(sign, a, b, dtype, 16).tolist() == [(x > 0) - (x < 0) for x in a.tolist()]
        return
    numbers = np.array([0.0, -0.0, 0.25, -0.25, 3, -3, math.inf, -math.inf, math.nan])
    a = convert(numbers, f64, dtype)
    found = convert(applied(sign, a, a, dtype, 16), dtype, f64)
    np.testing.assert_array_equal(found, [0, 0, 1, -1, 1, -1, 1, -1, math.nan])
    assert np.signbit(found)[:2].tolist() == [False, True]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinities(dtype: DType) -> None:
    @tc.function
    def of_infinite(a, b):
        return b if tc.isinf(a) else 0

    a = convert(np.array([0.0, math.inf, -math.inf, math.nan, dtype.maximum]), f64, dtype)
    ones = convert(np.ones(5), f64, dtype)
    found = applied(of_infinite, a, ones, dtype, 16)
    assert convert(found, dtype, f64).tolist() == [0, 1, 1, 0, 0]
