"""Conversions between element types, and fma: every result is rounded exactly once.

The tool for that is rounding to odd: of the two neighbours of an inexact value, take the one whose
last bit is 1. That bit then says "not exact", so a second rounding, to a format with at least two
bits less, gives what rounding the exact value would have given (Boldo and Melquiond, 2008).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.ir.types import DType, bf16, boolean, f16, f32, f64, i64, tf32

Array: TypeAlias = npt.NDArray[Any]


def as_storage(value: npt.ArrayLike, dtype: DType) -> Array:
    """`value` as an array of `dtype`'s storage. A Python number is rounded once to it."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype != dtype.numpy:
            raise TypeError(f"{dtype} is stored as {dtype.numpy}, not as {value.dtype}")
        return np.asarray(value)
    if not dtype.is_float:
        return np.asarray(value, dtype.numpy)
    array = np.asarray(value)
    source = {"b": boolean, "i": i64, "f": f64}.get(array.dtype.kind)
    if source is None:
        raise TypeError(f"{value!r} is not a value of type {dtype}")
    return convert(array.astype(source.numpy), source, dtype)


def convert(x: npt.ArrayLike, source: DType, target: DType) -> Array:
    """Convert `x` from type `source` to `target`.

    To a float: the nearest, ties to even. f8 saturates to the largest finite value, infinities too
    (PTX cvt.rn.satfinite); tf32 rounds ties away from zero (PTX cvt.rna). From a float to an
    integer: toward zero, saturating, NaN to 0 (llvm.fptosi.sat). Between integers: modulo 2**bits.
    To bool: whether it differs from 0. Where the types are the same, so is the array. Of a tf32 only
    the upper 19 bits count, as for the instructions that multiply it.
    """
    x = as_storage(x, source)
    if source is target:
        return x
    if source is tf32:
        x = np.asarray(np.asarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    with np.errstate(all="ignore"):
        if target is boolean:
            return np.asarray(x.astype(f32.numpy) != 0 if source.bits < 32 else x != 0)
        if not source.is_float:
            return _from_integer(x, source, target) if target.is_float else x.astype(target.numpy)
        if source is not f64:
            x = x.astype(np.float32)  # holds every value of the narrower formats
        return _narrow(x, target) if target.is_float else _to_integer(x, target)


def bitcast(x: npt.ArrayLike, source: DType, target: DType) -> Array:
    """Reinterpret `x` as the number of type `target` with the same bits."""
    return as_storage(x, source).view(target.numpy)


def _to_integer(x: Array, target: DType) -> Array:
    # Both limits are 0 or powers of two, exact in f32; the type's maximum may not be.
    lower, upper = float(target.minimum), 2.0 ** (target.bits - target.is_signed)
    inside = (x >= lower) & (x < upper)
    result = np.asarray(np.where(inside, x, x.dtype.type(0)).astype(target.numpy))
    result[x >= upper] = target.maximum
    result[x < lower] = target.minimum
    return result


def _from_integer(x: Array, source: DType, target: DType) -> Array:
    if target is f32 or target is f64:
        return x.astype(target.numpy)
    if source.bits == 64:
        # f64 would round. At 2**53 and above, fold the low 11 bits to odd: 53 bits stay.
        folded = (x & ~0x7FF if source.is_signed else x & 0xFFFFFFFFFFFFF800) | np.where(
            (x & 0x7FF) != 0, x.dtype.type(0x800), x.dtype.type(0)
        )
        large = x >= 2**53
        if source.is_signed:
            large |= x <= -(2**53)
        x = np.where(large, folded, x)
    return _narrow(x.astype(np.float64), target)


def _narrow(x: Array, target: DType) -> Array:
    """Round an f32 or f64 array once to a float type."""
    if target in (f64, f32, f16):
        return x.astype(target.numpy)  # NumPy rounds once
    if x.dtype == np.float64:
        # f32 has two bits more than each format below it, and all its exponents. ml_dtypes, too, converts through f32,
        # but rounds to even on the way.
        nearest = np.asarray(x.astype(np.float32))
        x = _to_odd(nearest, x - nearest)
    if target is tf32:
        return _nearest_tf32(x)
    if target.bits <= 8:
        x = np.clip(x, target.minimum, target.maximum)
    return x.astype(target.numpy)


def _nearest_tf32(x: Array) -> Array:
    bits = np.asarray(x).view(np.uint32)
    # Adding half a unit to the magnitude rounds ties away; it may carry into the exponent, and
    # from the largest finite values into infinity, as it should.
    rounded = np.where(np.isnan(x), bits | np.uint32(0x400000), bits + np.uint32(0x1000))
    return np.asarray(rounded & np.uint32(0xFFFFE000)).view(np.float32)


def _to_odd(nearest: Array, error: Array) -> Array:
    """`nearest + error` rounded to odd, where `nearest` is that sum rounded to nearest.

    An infinite `nearest` with an infinite error of the other sign is an overflow: it becomes the
    largest finite value, which is odd. A NaN error (infinity itself) changes nothing.
    """
    bits = np.asarray(nearest).view(np.dtype(f"i{nearest.itemsize}"))
    wrong = (np.abs(error) > 0) & ((bits & 1) == 0)
    # Floats of one sign are ordered as their bits: the next magnitude up is bits + 1.
    step = np.where(np.signbit(error) == np.signbit(nearest), wrong, -wrong.astype(np.int8))
    return np.asarray(bits + step.astype(bits.dtype)).view(nearest.dtype)


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike, dtype: DType) -> Array:
    """`a * b + c`, rounded once; modulo 2**bits for integers."""
    if not dtype.is_integer and dtype not in (f16, bf16, f32, f64):
        raise TypeError(f"{dtype} has no fma")
    a, b, c = as_storage(a, dtype), as_storage(b, dtype), as_storage(c, dtype)
    with np.errstate(all="ignore"):
        if dtype.is_integer:
            return np.asarray(np.add(np.multiply(a, b), c))
        return _fma_f64(a, b, c) if dtype is f64 else _fma_through_f64(a, b, c, dtype)


def _fma_through_f64(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """Below f64 a product is exact in f64, so the sum is the first rounding and `dtype` the second.

    The second goes wrong only where the sum was inexact and landed on the midpoint of two values
    of `dtype`. Full-precision midpoints show in the bits; among subnormals the midpoint lies
    elsewhere, so all of those are suspects. Suspects are summed again, to odd.

    f16 has none. A sum below 2**16 is inexact in f64 only if the product has bits under 2**-36, and
    then it is under 2**-14 and the addend over 2**4: the sum is far from a midpoint.
    """
    product = np.asarray(a.astype(np.float64) * b.astype(np.float64))
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    if dtype is f16:
        return _narrow(total, dtype)
    dropped = 52 - dtype.mantissa_bits
    suspect = np.asarray((total.view(np.int64) & (2**dropped - 1)) == 2 ** (dropped - 1))
    subnormal = np.asarray(np.abs(total) < dtype.smallest_normal)
    if np.count_nonzero(subnormal):  # a quarter of the time of any() for a few lanes
        suspect |= subnormal & (total != 0)
    if np.count_nonzero(suspect):
        _, error = _two_sum(product, addend)
        suspect &= error != 0  # sums of short numbers are often midpoints, and exact
        if np.count_nonzero(suspect):
            total[suspect] = _to_odd(total[suspect], np.asarray(error)[suspect])
    return _narrow(total, dtype)


def _fma_f64(a: Array, b: Array, c: Array) -> Array:
    """The product and the sum as unevaluated pairs, the low parts added to odd, then one rounding.

    This is Boldo and Melquiond's algorithm. It needs a product whose error is a normal number and
    sums that don't overflow; other elements take exact rational arithmetic, one at a time.
    """
    product = np.asarray(a * b)
    # Correct where a product is 0 or an operand isn't finite; with an infinite addend the product may overflow.
    finite = np.isfinite(a) & np.isfinite(b)
    total = np.asarray(np.where(np.isinf(c) & finite, c, product + c))
    high, low = product, _product_error(a, b, product)
    low_high, low_low = _two_sum(c, low)
    sum_high, sum_low = _two_sum(high, low_high)
    tail = _to_odd(*_two_sum(low_low, sum_low))
    regular = (a != 0) & (b != 0) & finite & np.isfinite(c)
    result = np.asarray(np.where(regular, sum_high + tail, total))

    huge, tiny = 2.0**960, 2.0**-960
    outside = (np.abs(a) > huge) | (np.abs(b) > huge) | (np.abs(c) > huge)
    outside |= (np.abs(product) > huge) | (np.abs(product) < tiny)
    outside = np.asarray(outside & regular)
    if outside.any():
        operands = (np.broadcast_to(x, result.shape)[outside].tolist() for x in (a, b, c))
        result[outside] = [_exact_fma(*triple) for triple in zip(*operands, strict=True)]
    return result


def _exact_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact)  # Python rounds a quotient of integers once, subnormal or not
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and its exact error (Knuth)."""
    total = np.asarray(a + b)
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """a * b - product, exactly (Dekker)."""
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = a_high * b_high - product
    return np.asarray(error + a_high * b_low + a_low * b_high + a_low * b_low)


def _split(x: Array) -> tuple[Array, Array]:
    """x as the sum of two numbers of at most 26 bits (Veltkamp)."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high
