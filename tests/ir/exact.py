"""What results ought to be: from rationals, and from tables of all values of a format."""

from fractions import Fraction

import numpy as np

from taskc.ir.types import DType


def rounded(value: Fraction, dtype: DType) -> float:
    """The definition of rounding to nearest even, overflowing to infinity."""
    if value == 0:
        return 0.0
    numerator, denominator = abs(value.numerator), value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    if Fraction(2) ** exponent > abs(value):
        exponent -= 1
    unit = max(exponent, 2 - 2 ** (dtype.exponent_bits - 1)) - dtype.mantissa_bits
    count = round(value / Fraction(2) ** unit)
    if abs(count * Fraction(2) ** unit) > dtype.maximum:
        return float("inf") if value > 0 else float("-inf")
    return float(count * Fraction(2) ** unit) if count else (0.0 if value > 0 else -0.0)


def every_value(dtype: DType) -> np.ndarray:
    """All bit patterns of an 8-bit or 16-bit type."""
    return np.arange(2**dtype.bits).astype(f"u{dtype.nbytes}").view(dtype.numpy)


def decoded(dtype: DType) -> np.ndarray:
    """The non-negative finite values of an 8-bit or 16-bit format in order, from its definition."""
    code = np.arange(2 ** (dtype.bits - 1))
    exponent, fraction = code >> dtype.mantissa_bits, code & (2**dtype.mantissa_bits - 1)
    significand = fraction + np.where(exponent > 0, 2**dtype.mantissa_bits, 0)
    bias = 2 ** (dtype.exponent_bits - 1) - 1
    values = np.ldexp(significand * 1.0, np.maximum(exponent, 1) - bias - dtype.mantissa_bits)
    return values[values <= dtype.maximum]


def nearest_in_table(x: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 values rounded by search: midpoints of formats this narrow are exact in f64."""
    values = decoded(dtype)
    beyond = 2 * values[-1] - values[-2]
    midpoints = (values + np.append(values[1:], beyond)) / 2
    magnitude = np.abs(x)
    index = np.searchsorted(midpoints, magnitude)  # the first midpoint >= x
    tie = magnitude == midpoints[np.minimum(index, len(values) - 1)]
    index += tie & (index % 2 == 1)
    saturated = np.append(values, values[-1] if dtype.bits == 8 else np.inf)
    return np.where(np.isnan(x), x, np.copysign(saturated[index], x))


def assert_same(actual, expected):
    """Equal as f64, zeros with their signs; every NaN is one."""
    actual, expected = wide(np.asarray(actual)), np.asarray(expected, np.float64)
    same = (actual == expected) & (np.signbit(actual) == np.signbit(expected))
    wrong = np.flatnonzero(~(same | (np.isnan(actual) & np.isnan(expected))))
    assert not wrong.size, (wrong.size, actual.flat[wrong[0]], expected.flat[wrong[0]])


def random_floats(count: int, dtype: DType, seed: int = 0) -> np.ndarray:
    """Random bit patterns: all exponents, subnormals, infinities and NaNs."""
    random = np.random.default_rng(seed)
    unsigned = f"u{dtype.nbytes}"
    return random.integers(0, 2**dtype.bits, count, dtype=unsigned).view(dtype.numpy)


def wide(x: np.ndarray) -> np.ndarray:
    """Exactly, as f64. NumPy warns where a NaN is signalling, and the hardware quiets it."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)
