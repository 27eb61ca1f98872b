"""Conversions and fma against exact arithmetic: rationals, and tables of all values of a format."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from taskc.ir.arithmetic import as_storage, convert, fma
from taskc.ir.types import (
    DTYPES,
    DType,
    bf16,
    boolean,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u64,
)
from tests.ir.exact import (
    assert_same,
    decoded,
    every_value,
    nearest_in_table,
    random_floats,
    rounded,
    wide,
)

NARROW = (f16, bf16, f8e4m3, f8e5m2)
INTEGERS = tuple(dtype for dtype in DTYPES.values() if dtype.is_integer)


def near_midpoints(dtype: DType) -> np.ndarray:
    """f64 values at, just below and just above the midpoints of a narrow format."""
    values = decoded(dtype)
    middle = (values[1:] + values[:-1]) / 2
    both = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf), values])
    edge = (dtype.maximum + (dtype.maximum - values[-2]) / 2) * np.array(
        [1 - 2**-52, 1, 1 + 2**-52]
    )
    specials = [np.inf, np.nan, 0.0, 5e-324, 1e308]
    both = np.concatenate([both, edge, specials])
    return np.concatenate([both, -both])


@pytest.mark.parametrize("target", NARROW, ids=str)
def test_f64_to_narrow_floats_rounds_once(target):
    x = np.concatenate([near_midpoints(target), random_floats(100_000, f64)])
    random = np.random.default_rng(1)
    x = np.concatenate(
        [x, random.standard_normal(100_000) * 2.0 ** random.integers(-30, 20, 100_000)]
    )
    expected = nearest_in_table(x, target)
    assert_same(convert(x, f64, target), expected)
    with np.errstate(all="ignore"):
        through_f32 = convert(x.astype(np.float32), f32, target).astype(np.float64)
    assert np.any(through_f32 != expected), "rounding twice must show on these values"


@pytest.mark.parametrize("source", [f16, bf16, f8e4m3, f8e5m2], ids=str)
def test_every_narrow_float_converts_to_every_float(source):
    x = every_value(source)
    exact = convert(x, source, f64)
    table = decoded(source)
    assert_same(exact[: len(table)], table)
    assert_same(exact[len(exact) // 2 :][: len(table)], -table)
    for target in NARROW:
        assert_same(
            convert(x, source, target),
            nearest_in_table(exact, target) if target is not source else exact,
        )
    with np.errstate(over="ignore"):
        assert_same(convert(x, source, f32), exact)
    assert_same(convert(x, source, tf32), exact)


@pytest.mark.parametrize("target", NARROW, ids=str)
def test_f32_to_narrow_floats(target):
    with np.errstate(all="ignore"):
        x = np.concatenate([near_midpoints(target).astype(np.float32), random_floats(200_000, f32)])
        assert_same(convert(x, f32, target), nearest_in_table(wide(x), target))


def test_f64_to_f32():
    x = random_floats(3_000, f64)
    x = np.concatenate([x, wide(random_floats(3_000, f32)) * (1 + 2.0**-24)])
    x = x[np.isfinite(x)]
    assert_same(convert(x, f64, f32), [rounded(Fraction(v), f32) or v * 0 for v in x.tolist()])


def test_f8_saturates():
    for target in (f8e4m3, f8e5m2):
        high = convert([1e30, np.inf, -np.inf, np.nan], f32, target).astype(np.float64)
        assert_same(high, [target.maximum, target.maximum, target.minimum, np.nan])


def test_tf32_rounds_ties_away_and_keeps_the_low_bits_zero():
    x = random_floats(200_000, f32)
    x[:4096] = (np.arange(4096, dtype=np.uint32) * 0x1000 + 0x3F000000).view(np.float32)
    result = convert(x, f32, tf32)
    assert result.dtype == np.float32
    assert not np.any(result.view(np.uint32) & 0x1FFF)
    special = ~np.isfinite(x)
    assert_same(result[special], wide(x[special]))
    exact = wide(x[~special])
    unit = 2.0 ** (np.maximum(np.frexp(exact)[1] - 1, -126) - 10)
    expected = np.copysign(np.floor(np.abs(exact) / unit + 0.5) * unit, exact)
    with np.errstate(over="ignore"):
        assert_same(result[~special], expected.astype(np.float32))
    only_low_payload = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(convert(only_low_payload, f32, tf32)).all()
    just_below_a_tie = 1 + 2.0**-11 - 2.0**-52
    assert_same(convert([just_below_a_tie, 1 + 2.0**-11], f64, tf32), [1, 1 + 2.0**-10])


def test_of_a_tf32_only_the_upper_bits_count():
    x = random_floats(100_000, f32)
    upper = (x.view(np.uint32) & 0xFFFFE000).view(np.float32)
    for target in (f32, f64, f16, i32, boolean):
        assert_same(convert(x, tf32, target), wide(convert(upper, f32, target)))
    assert convert(np.float32(1 + 2.0**-10 + 2.0**-11), tf32, f32) == 1 + 2.0**-10
    assert not convert(np.float32(2.0**-140), tf32, boolean)


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [f8e4m3, f8e5m2, f16, bf16, f32, f64], ids=str)
def test_floats_to_integers_truncate_and_saturate(source, target):
    x = every_value(source) if source.bits <= 16 else random_floats(1_000, source)
    edges = [target.maximum, target.maximum + 1, target.minimum, target.minimum - 1, -0.5, 0.9, 1.5]
    if source.bits >= 32:
        x = np.concatenate(
            [x, np.array(edges, x.dtype), -x[:9], np.array([np.nan, np.inf], x.dtype)]
        )
        near_zero = np.random.default_rng(2).uniform(-300, 300, 1_000).astype(x.dtype)
        x = np.concatenate([x, near_zero])
    elif (source.bits, target.bits) == (16, 16):
        x = x[::7]

    def expected(value: float) -> int:
        if value != value:
            return 0
        if abs(value) == np.inf:
            return target.maximum if value > 0 else target.minimum
        return min(max(int(value), target.minimum), target.maximum)

    result = convert(x, source, target)
    assert result.dtype == target.numpy
    assert result.tolist() == [expected(value) for value in wide(x).tolist()]


@pytest.mark.parametrize("target", [f16, bf16, f32, f64, f8e4m3, f8e5m2], ids=str)
@pytest.mark.parametrize("source", [i8, i16, i32, i64, u8, u64], ids=str)
def test_integers_to_floats_round_once(source, target):
    random = np.random.default_rng(3)
    x = random.integers(source.minimum, source.maximum, 500, source.numpy, endpoint=True)
    x = np.concatenate([x, x >> random.integers(0, source.bits, 500).astype(x.dtype)])
    for shift in range(target.mantissa_bits + 1, source.bits - source.is_signed):
        # Odd and even midpoints of the target, and their neighbours.
        even, odd = 2**target.mantissa_bits, 2**target.mantissa_bits + 1
        near = [(m << shift) + 2 ** (shift - 1) + d for m in (even, odd) for d in (-1, 0, 1)]
        x = np.append(x, np.array([value for value in near if value <= source.maximum], x.dtype))
    if source.is_signed:
        x = np.concatenate([x, -x])
    expected = np.array([rounded(Fraction(value), target) for value in x.tolist()])
    if target.bits == 8:
        expected = np.clip(expected, target.minimum, target.maximum)
    assert_same(convert(x, source, target), expected)


def test_double_rounding_of_integers_would_show():
    x = np.array([2**60 + 2**36 + 1, 2**60 + 2**52 + 1], np.int64)
    assert convert(x[:1], i64, f32) != x[:1].astype(np.float64).astype(np.float32)
    assert convert(x[1:], i64, bf16) != x[1:].astype(np.float32).astype(bf16.numpy)


def test_integers_wrap_and_bools_are_0_and_1():
    values = [0, 1, 127, 128, 255, 256, 2**31, 2**63 - 1, -1, -129, -(2**63)]
    for target in INTEGERS:
        modulus = 2**target.bits
        expected = [(v - target.minimum) % modulus + target.minimum for v in values]
        assert convert(np.array(values), i64, target).tolist() == expected
    for dtype in [dtype for dtype in DTYPES.values() if not dtype.is_sub_byte]:
        assert convert([False, True], boolean, dtype).astype(np.float64).tolist() == [0, 1]
        if dtype.is_float:
            values = convert(np.array([0, -0.0, 1, np.nan, -3.0]), f64, dtype)
            assert convert(values, dtype, boolean).tolist() == [False, False, True, True, True]
        else:
            assert convert(np.array([0, 1], dtype.numpy), dtype, boolean).tolist() == [False, True]


def test_operands():
    assert as_storage(0.1, bf16) == convert(np.float64(0.1), f64, bf16)
    assert as_storage(1, f32).dtype == np.float32
    assert as_storage(5, tf32).dtype == np.float32
    with pytest.raises(TypeError, match="f32 is stored as float32, not as float64"):
        convert(np.float64(1), f32, f16)
    with pytest.raises(TypeError, match="'a' is not a value of type f32"):
        as_storage("a", f32)


def hard_triples(count: int, dtype: DType, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f64 triples whose product is a hair from half a unit of the addend.

    The factors have p = mantissa_bits + 1 bits and their product is 2**(2p - 2) plus or minus
    something small: with an addend of p bits the sum lies beside a midpoint, closer than f64 sees.
    A third lands among subnormals, a third cancels, the rest is anywhere.
    """
    random = np.random.default_rng(seed)
    p = dtype.mantissa_bits + 1
    top = 2 ** (2 * p - 2)
    pairs = []
    while sum(len(a) for a, _ in pairs) < count:
        a = random.integers(2 ** (p - 1), 2**p, 8 * count)
        b = (top + a // 2) // a
        kept = np.abs(a * b - top) < max(2 ** (p - 6), 4)
        pairs.append((a[kept], b[kept]))
    a, b = (np.concatenate(side)[:count].astype(np.float64) for side in zip(*pairs, strict=True))
    c = random.integers(2 ** (p - 1), 2**p, count).astype(np.float64)
    signs = random.choice([-1.0, 1.0], (2, count))
    a, c = a * signs[0], c * signs[1]

    lowest = 2 - 2 ** (dtype.exponent_bits - 1) - dtype.mantissa_bits
    highest = 2 ** (dtype.exponent_bits - 1) - p
    unit = random.integers(lowest, highest - 1, count)  # of the addend
    kind = random.integers(0, 3, count)
    unit[kind == 0] = lowest
    c[kind == 0] //= 2.0 ** random.integers(0, p, count)[kind == 0]
    # The product is about half a unit: a's share of the exponent is what b leaves.
    shift_b = np.clip((unit - 1 - (2 * p - 2)) // 2, lowest, highest)
    shift_a = np.clip(unit - 1 - (2 * p - 2) - shift_b, lowest, highest)
    a, b, c = np.ldexp(a, shift_a), np.ldexp(b, shift_b), np.ldexp(c, unit)
    cancels = kind == 1
    c[cancels] = -(a * b)[cancels] * (1 + random.integers(-2, 3, count)[cancels] * 2.0 ** (1 - p))
    return a, b, c


def product_midpoints(count: int, dtype: DType, seed: int) -> tuple[np.ndarray, ...]:
    """f64 triples whose product is a midpoint of two values, and the addend a hair."""
    random = np.random.default_rng(seed)
    p = dtype.mantissa_bits + 1
    a = random.integers(0, 2 ** (p // 2), 16 * count) * 2 + 1
    b = random.integers(0, 2 ** (p - p // 2), 16 * count) * 2 + 1
    midpoint = (a * b >= 2**p) & (a * b < 2 ** (p + 1))
    a, b = a[midpoint][:count] * 1.0, b[midpoint][:count] * 1.0
    lowest = 2 - 2 ** (dtype.exponent_bits - 1) - dtype.mantissa_bits
    shift_a = random.integers(lowest // 2, -lowest // 2, len(a))
    shift_b = random.integers(0, -lowest // 2 - p, len(a))
    c = np.ldexp(random.choice([-1.0, 1.0], len(a)), np.maximum(shift_a + shift_b - 60, lowest))
    return np.ldexp(a, shift_a), np.ldexp(b, shift_b), c


def exact_fma(a, b, c, dtype: DType) -> list[float]:
    results = []
    for x, y, z in zip(*(wide(v).tolist() for v in (a, b, c)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        # IEEE gives an exact zero the sign that adding the (possibly signed) zeros gives.
        results.append(rounded(exact, dtype) if exact else (x * y + z if x * y == 0 else 0.0))
    return results


def finite_triples(dtype: DType, count: int, seed: int) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        hard = [convert(v, f64, dtype) for v in hard_triples(count, dtype, seed)]
        middle = [convert(v, f64, dtype) for v in product_midpoints(count // 10, dtype, seed)]
        wild = [random_floats(count // 10, dtype, seed + k) for k in range(3)]
    triple = [np.concatenate(parts) for parts in zip(hard, middle, wild, strict=True)]
    finite = np.logical_and.reduce([np.isfinite(wide(v)) for v in triple])
    return tuple(v[finite] for v in triple)


@pytest.mark.parametrize(("dtype", "checked"), [(f32, 20_000), (f16, 20_000), (bf16, 10_000)])
def test_fma_through_f64_rounds_once(dtype, checked):
    a, b, c = finite_triples(dtype, 200_000, seed=4)
    assert len(a) > 200_000
    result = fma(a, b, c, dtype)
    x, y, z = (wide(v) for v in (a, b, c))
    with np.errstate(all="ignore"):
        naive = convert(x * y + z, f64, dtype)
    differs = np.flatnonzero(wide(naive) != wide(result))
    if dtype is f16:
        assert not len(differs)
    else:
        assert len(differs) > 1_000, "the naive route must fail on these"
    # Every element where the two routes part, and a sample of the others.
    sample = np.random.default_rng(5).permutation(len(a))[: checked // 2]
    chosen = np.union1d(differs[: checked // 2], sample)
    assert_same(result[chosen], exact_fma(a[chosen], b[chosen], c[chosen], dtype))


def test_fma_f64_rounds_once():
    random = np.random.default_rng(6)
    count = 2_000
    mantissa = 1 + random.integers(-64, 64, (2, count)) * 2.0**-52
    exponent = random.integers(-300, 300, (2, count))
    a, b = np.ldexp(mantissa, exponent)
    c = np.ldexp(random.integers(2**52, 2**53, count) * 1.0, exponent.sum(0) + 1)
    triples = [(a, b, c), (a, -b, c)]
    a, b = random.standard_normal((2, count))
    triples.append((a, b, -(a * b) * (1 + random.integers(-2, 3, count) * 2.0**-52)))
    wild = [random_floats(1_500, f64, seed) for seed in (7, 8, 9)]
    triples.append(tuple(wild))
    a, b = np.ldexp(random.standard_normal((2, 500)), random.integers(-540, -530, (2, 500)))
    triples.append((a, b, random.integers(-9, 9, 500) * 5e-324))
    a, b = np.ldexp(random.standard_normal((2, 500)), random.integers(509, 514, (2, 500)))
    triples.append((a, b, np.ldexp(random.uniform(-1, 1, 500), 1023)))
    a, b, c = (np.concatenate(side) for side in zip(*triples, strict=True))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[finite], b[finite], c[finite]
    result = fma(a, b, c, f64)
    with np.errstate(all="ignore"):
        assert np.count_nonzero(result != a * b + c) > 1_000, "the naive route must fail on these"
    assert_same(result, exact_fma(a, b, c, f64))


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_fma_of_zeros_infinities_and_nans(dtype):
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    a, b, c = convert(np.array(list(product(values, repeat=3))).T, f64, dtype)
    with np.errstate(all="ignore"):
        expected = wide(a) * wide(b) + wide(c)
    assert_same(fma(a, b, c, dtype), expected)
    assert_same(fma(-1.0, 0.0, 0.0, dtype), 0.0)
    assert_same(fma(-1.0, 0.0, -0.0, dtype), -0.0)
    assert_same(fma(3.0, 7.0, -21.0, dtype), 0.0)
    overflow = fma(dtype.maximum, 2.0, -dtype.maximum, dtype)
    assert_same(overflow, dtype.maximum)
    assert_same(fma(dtype.maximum, -dtype.maximum, np.inf, dtype), np.inf)  # no product is infinite


def test_fma_broadcasts_and_wraps_integers():
    column = np.arange(3, dtype=np.float32)[:, None]
    result = fma(column, np.float32(2), np.arange(4, dtype=np.float32), f32)
    assert result.tolist() == [[2.0 * i + j for j in range(4)] for i in range(3)]
    transposed = fma(np.ones((3, 2), np.float32).T, 1 + 2.0**-23, 2.0**-24, f32)
    assert transposed.shape == (2, 3)
    assert isinstance(fma(1.0, 1 - 2.0**-23, 2.0**25, f32), np.ndarray)
    assert fma(100, 100, 1, i8) == (10_001 + 128) % 256 - 128
    assert fma(200, 200, 200, u8) == 40_200 % 256
    for dtype in (tf32, f8e4m3, boolean):
        with pytest.raises(TypeError, match=f"{dtype} has no fma"):
            fma(1, 1, 1, dtype)
