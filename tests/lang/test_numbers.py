"""Division as C has it, powers of integers, signs and infinities, by Python's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.ir.arithmetic import convert
from tests.stages import same_after_every_pass

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


@pytest.mark.each_value(2)
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


OF_BITS: dict[str, Callable[[str], int]] = {
    "popcount": lambda digits: digits.count("1"),
    "leading_zeros": lambda digits: len(digits) - len(digits.lstrip("0")),
    "trailing_zeros": lambda digits: len(digits) - len(digits.rstrip("0")),
    "reverse_bits": lambda digits: int(digits[::-1], 2),
}


@pytest.mark.each_value(2)
@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", OF_BITS)
def test_functions_of_bits(name: str, dtype: DType, workers: int) -> None:
    function = getattr(tc, name)

    @tc.function
    def of_bits(a, b):
        return function(a)

    random = np.random.default_rng(3)
    numbers = np.frombuffer(random.bytes(64 * dtype.nbytes), dtype.numpy)
    single = np.array([wrapped(1 << n, dtype) for n in range(dtype.bits)], dtype.numpy)
    a = np.concatenate([pairs(dtype, ())[0], numbers, single, numbers >> dtype.bits // 2])
    digits = [f"{x % 2**dtype.bits:0{dtype.bits}b}" for x in a.tolist()]
    expected = [wrapped(OF_BITS[name](text), dtype) for text in digits]
    assert applied(of_bits, a, a, dtype, workers).tolist() == expected


def test_functions_of_bits_of_what_is_known() -> None:
    counts = tc.popcount(-1), tc.leading_zeros(0), tc.trailing_zeros(0), tc.leading_zeros(1)
    assert counts == (64, 64, 64, 63)
    assert tc.reverse_bits(1) == -(2**63)
    with pytest.raises(TypeError, match="float"):
        tc.popcount(2.5)
    with pytest.raises(
        ValueError, match=r"out of range for i64: say it, u64\(9223372036854775808\)"
    ):
        tc.popcount(2**63)

    @tc.kernel(workers=1)
    def known(y: tc.out[i64[4]]):
        for _ in tc.spatial(1):
            y[0] = tc.leading_zeros(u8(1)).to(i64)
            y[1] = tc.trailing_zeros(u16(0)).to(i64)
            y[2] = tc.popcount(7)
            y[3] = tc.reverse_bits(u8(1)).to(i64)

    assert known().tolist() == [7, 16, 3, 128]


def test_a_count_of_bits_is_an_index() -> None:
    """The proof knows between which numbers it lies; and an i64 that fits i32 has 64 bits all the same."""

    @tc.kernel(workers=8)
    def looked_up(table: i32[65], y: tc.out[i32[100, 3]]):
        for start in tc.tiles(100, by=8):
            for i in tc.spatial(8):
                if start + i < 100:
                    y[start + i, 0] = table[tc.popcount(start + i)]
                    y[start + i, 1] = table[tc.leading_zeros(start + i)]
                    y[start + i, 2] = table[tc.trailing_zeros(start + i)]

    digits = [f"{n:064b}" for n in range(100)]
    names = "popcount", "leading_zeros", "trailing_zeros"
    expected = np.array([[OF_BITS[name](text) for name in names] for text in digits], np.int32)
    table = np.arange(65, dtype=np.int32)
    assert looked_up(table).tolist() == expected.tolist()
    on_gpus = replace(looked_up.ir, target="sm_80")  # where indices are narrowed
    given = [table, np.zeros_like(expected)]
    same_after_every_pass(on_gpus, given, expected=[table, expected])
