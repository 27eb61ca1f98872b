"""The meaning of every scalar operation, on NumPy arrays.

The simulator and the constant folder compute with these functions; backends must agree with them
bit for bit, but for MATH_FUNCTIONS. Operands are scalars or arrays of the type's storage and
broadcast; results are arrays. Nothing here raises or warns because of a value.

f16 and bf16 are computed in f32 and then rounded. Two roundings are one here: for + - * / and sqrt
it is enough that the wider format has 2p + 2 bits (Figueroa, 1995), and f32 has 24, f16 p = 11,
bf16 p = 8. f16's exponents, subnormals included, lie well within f32's normal range. bf16 shares
f32's subnormals, but there a sum is exact in f32, a product is exact or below half of bf16's
smallest subnormal, and a quotient that is no midpoint of bf16 is too far from one to be rounded to
it.
Conversions between element types, and fma, have to be rounded exactly once. They are rounded to odd
first: of the two neighbours of an inexact value, take the one whose last bit is 1. That bit then means
"not exact", so a second rounding, to a format with at least two bits less, has the result of
rounding the exact value (Boldo and Melquiond, 2008).

erf and erfc of f64 arrays are accurate to about 1e-15, by W. J. Cody, "Rational Chebyshev approximations for
the error function", Math. Comp. 23 (1969), with the coefficients of his CALERF.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.dataclass import dataclass
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
    from fractions import Fraction  # loads decimal

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


Doubles = npt.NDArray[np.float64]

# Each polynomial starts with its highest power; |x| <= 0.46875 ...
_NEAR_NUMERATOR = (
    *(1.85777706184603153e-1, 3.16112374387056560e00, 1.13864154151050156e02),
    *(3.77485237685302021e02, 3.20937758913846947e03),
)
_NEAR_DENOMINATOR = (
    *(1.0, 2.36012909523441209e01, 2.44024637934444173e02),
    *(1.28261652607737228e03, 2.84423683343917062e03),
)
# ... up to 4 ...
_MIDDLE_NUMERATOR = (
    *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e00),
    *(6.61191906371416295e01, 2.98635138197400131e02, 8.81952221241769090e02),
    *(1.71204761263407058e03, 2.05107837782607147e03, 1.23033935479799725e03),
)
_MIDDLE_DENOMINATOR = (
    *(1.0, 1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02),
    *(1.62138957456669019e03, 3.29079923573345963e03, 4.36261909014324716e03),
    *(3.43936767414372164e03, 1.23033935480374942e03),
)
# ... and above, in 1 / x**2.
_FAR_NUMERATOR = (
    *(1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1),
    *(1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
)
_FAR_DENOMINATOR = (
    *(1.0, 2.56852019228982242e00, 1.87295284992346725e00),
    *(5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3),
)
_NEAR, _FAR = 0.46875, 4.0


def _ratio(numerator: tuple[float, ...], denominator: tuple[float, ...], x: Doubles) -> Doubles:
    top, bottom = np.full_like(x, numerator[0]), np.full_like(x, denominator[0])
    for coefficient in numerator[1:]:
        top = top * x + coefficient
    for coefficient in denominator[1:]:
        bottom = bottom * x + coefficient
    return top / bottom


def _erf_near(x: Doubles) -> Doubles:
    return x * _ratio(_NEAR_NUMERATOR, _NEAR_DENOMINATOR, x * x)


def _erfc_above(x: Doubles) -> Doubles:
    """erfc for x > 0.46875."""
    scaled = np.empty_like(x)
    far = x > _FAR
    scaled[~far] = _ratio(_MIDDLE_NUMERATOR, _MIDDLE_DENOMINATOR, x[~far])
    y = x[far]
    inverse = 1 / (y * y)
    tail = inverse * _ratio(_FAR_NUMERATOR, _FAR_DENOMINATOR, inverse)
    scaled[far] = (1 / np.sqrt(np.pi) - tail) / y
    # exp(-x * x) with x * x = head**2 + rest, the square exact: an error of one ulp in x * x would
    # be one of x * x ulps in the exponential. Beyond 28 it is 0 (and infinity would give NaN).
    x = np.minimum(x, 28.0)
    head = np.trunc(x * 16) / 16
    return np.asarray(np.exp(-head * head) * np.exp(-(x - head) * (x + head)) * scaled)


def erf(x: Doubles) -> Doubles:
    """The error function."""
    magnitude = np.abs(x)
    result = np.asarray(np.sign(x))
    near = ~(magnitude > _NEAR)  # NaN too
    result[near] = _erf_near(x[near])
    middle = (magnitude > _NEAR) & (magnitude < 6)  # from 6 on erf rounds to 1
    result[middle] *= 1 - _erfc_above(magnitude[middle])
    return result


def erfc(x: Doubles) -> Doubles:
    """1 - erf(x), accurate where that is small."""
    magnitude = np.abs(x)
    result = np.empty_like(x)
    near = ~(magnitude > _NEAR)
    result[near] = 1 - _erf_near(x[near])
    above = _erfc_above(magnitude[~near])
    result[~near] = np.where(x[~near] < 0, 2 - above, above)
    return result


__all__ = [
    "BINARY_OPERATORS",
    "BIT_COUNTS",
    "COMPARISONS",
    "MATH_FUNCTIONS",
    "UNARY_OPERATORS",
    "as_storage",
    "binary",
    "bitcast",
    "convert",
    "divides_by_zero",
    "fma",
    "unary",
]


@dataclass(frozen=True, slots=True)
class Operator:
    """The kinds of type that an operator takes, and its function on f32, f64 or integers."""

    kinds: frozenset[str]
    evaluate: Callable[..., Any]


def _minimum(a: Array, b: Array) -> Array:
    # Equal floats have equal bits, except the zeros: the sign of -0 wins by |, in _maximum by &.
    return _ordered(np.minimum, np.bitwise_or, a, b)


def _maximum(a: Array, b: Array) -> Array:
    return _ordered(np.maximum, np.bitwise_and, a, b)


def _ordered(pick: np.ufunc, merge: np.ufunc, a: Array, b: Array) -> Array:
    result = np.asarray(pick(a, b))
    if result.dtype.kind == "f":
        zero = (a == 0) & (b == 0)
        if zero.any():
            as_bits = np.dtype(f"i{result.itemsize}")
            merged = np.asarray(merge(a.view(as_bits), b.view(as_bits))).view(result.dtype)
            result = np.where(zero, merged, result)
    return result


def _power(a: Array, b: Array) -> Array:
    """Powers of floats and integers; a negative power of an integer is the inverse, truncated."""
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    is_inverse = b < 0
    result = np.power(a, np.where(is_inverse, b & 1, b))
    return np.where(is_inverse & (np.abs(a) != 1), 0, result).astype(a.dtype)


def _sigmoid(x: Array) -> Array:
    power = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x < 0, power, 1.0) / (1 + power))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * erfc(x * -np.sqrt(0.5)))  # not 1 + erf, which cancels for x < 0


def _dot_bytes(a: Array, b: Array) -> Array:
    """The sum of the products of a's bytes, with their signs, and b's, without."""
    signed, unsigned = a[..., None].view(np.int8), b[..., None].view(np.uint8)
    products = signed.astype(a.dtype) * unsigned.astype(a.dtype)
    return np.asarray(products.sum(-1, dtype=a.dtype))


def _digits(x: Array) -> Array:
    """The bits of each number along a new last axis, highest first."""
    highest_first = np.asarray(x, x.dtype.newbyteorder(">"))[..., None]
    return np.unpackbits(highest_first.view(np.uint8), axis=-1)


def _zeros_before_one(digits: Array) -> Array:
    return np.asarray(np.where(digits.any(-1), digits.argmax(-1), digits.shape[-1]))


def _popcount(x: Array) -> Array:
    return np.asarray(_digits(x).sum(-1, dtype=x.dtype))


def _leading_zeros(x: Array) -> Array:
    return _zeros_before_one(_digits(x)).astype(x.dtype)


def _trailing_zeros(x: Array) -> Array:
    return _zeros_before_one(_digits(x)[..., ::-1]).astype(x.dtype)


def _reverse_bits(x: Array) -> Array:
    highest_first = np.packbits(_digits(x)[..., ::-1], axis=-1)
    reversed_bits: Array = highest_first.view(x.dtype.newbyteorder(">"))[..., 0]
    return reversed_bits.astype(x.dtype)


_FLOATS = frozenset({"float"})
_INTEGERS = frozenset({"int", "uint"})
_BOOLS = frozenset({"bool"})
_NUMBERS = _INTEGERS | _FLOATS
_BITS = _INTEGERS | _BOOLS
_ALL = _NUMBERS | _BOOLS

# Integers wrap modulo 2**bits; NumPy does so on arrays, and INT_MIN // -1 is INT_MIN.
BINARY_OPERATORS: dict[str, Operator] = {
    "+": Operator(_NUMBERS, np.add),
    "-": Operator(_NUMBERS, np.subtract),
    "*": Operator(_NUMBERS, np.multiply),
    "/": Operator(_FLOATS, np.divide),
    "//": Operator(_NUMBERS, np.floor_divide),  # as in Python, but 0 for an integer divided by 0
    "%": Operator(_NUMBERS, np.remainder),  # likewise
    "fmod": Operator(_FLOATS, np.fmod),  # remainder of the truncated quotient
    "pow": Operator(_NUMBERS, _power),
    "atan2": Operator(_FLOATS, np.arctan2),
    "dot_bytes": Operator(frozenset({"int"}), _dot_bytes),
    "min": Operator(_ALL, _minimum),  # NaN if either is; -0 < +0
    "max": Operator(_ALL, _maximum),
    "&": Operator(_BITS, np.bitwise_and),
    "|": Operator(_BITS, np.bitwise_or),
    "^": Operator(_BITS, np.bitwise_xor),
    # Shift counts are unsigned: a count of `bits` or more, and so every negative one, shifts all bits out.
    "<<": Operator(_INTEGERS, np.left_shift),
    ">>": Operator(_INTEGERS, np.right_shift),
    "and": Operator(_BOOLS, np.logical_and),
    "or": Operator(_BOOLS, np.logical_or),
    "==": Operator(_ALL, np.equal),
    "!=": Operator(_ALL, np.not_equal),
    "<": Operator(_ALL, np.less),
    "<=": Operator(_ALL, np.less_equal),
    ">": Operator(_ALL, np.greater),
    ">=": Operator(_ALL, np.greater_equal),
}

COMPARISONS: frozenset[str] = frozenset({"==", "!=", "<", "<=", ">", ">="})

UNARY_OPERATORS: dict[str, Operator] = {
    "-": Operator(_NUMBERS, np.negative),
    "abs": Operator(_NUMBERS, np.abs),
    "~": Operator(_INTEGERS, np.invert),
    "popcount": Operator(_INTEGERS, _popcount),
    "leading_zeros": Operator(_INTEGERS, _leading_zeros),  # of 0 all bits
    "trailing_zeros": Operator(_INTEGERS, _trailing_zeros),  # likewise
    "reverse_bits": Operator(_INTEGERS, _reverse_bits),
    "not": Operator(_BOOLS, np.logical_not),
    "floor": Operator(_FLOATS, np.floor),
    "ceil": Operator(_FLOATS, np.ceil),
    "round": Operator(_FLOATS, np.rint),  # ties to even
    "trunc": Operator(_FLOATS, np.trunc),
    "isnan": Operator(_FLOATS, np.isnan),
    "sqrt": Operator(_FLOATS, np.sqrt),
    "rsqrt": Operator(_FLOATS, lambda x: 1 / np.sqrt(x)),
    "exp": Operator(_FLOATS, np.exp),
    "exp2": Operator(_FLOATS, np.exp2),
    "expm1": Operator(_FLOATS, np.expm1),
    "fast_exp2": Operator(_FLOATS, np.exp2),  # see docs/values.md
    "log": Operator(_FLOATS, np.log),
    "log2": Operator(_FLOATS, np.log2),
    "log1p": Operator(_FLOATS, np.log1p),
    "sin": Operator(_FLOATS, np.sin),
    "cos": Operator(_FLOATS, np.cos),
    "tan": Operator(_FLOATS, np.tan),
    "asin": Operator(_FLOATS, np.arcsin),
    "acos": Operator(_FLOATS, np.arccos),
    "atan": Operator(_FLOATS, np.arctan),
    "sinh": Operator(_FLOATS, np.sinh),
    "cosh": Operator(_FLOATS, np.cosh),
    "tanh": Operator(_FLOATS, np.tanh),
    "asinh": Operator(_FLOATS, np.arcsinh),
    "acosh": Operator(_FLOATS, np.arccosh),
    "atanh": Operator(_FLOATS, np.arctanh),
    "sigmoid": Operator(_FLOATS, _sigmoid),
    "erf": Operator(_FLOATS, erf),
    "gelu": Operator(_FLOATS, _gelu),  # x * Phi(x), not the tanh approximation
}

# Their results lie between 0 and the type's number of bits.
BIT_COUNTS: frozenset[str] = frozenset({"popcount", "leading_zeros", "trailing_zeros"})

# Computed in f64 and rounded to the type; backends have to match within an error, not bit for bit.
MATH_FUNCTIONS: frozenset[str] = frozenset(
    {"pow", "rsqrt", "exp", "exp2", "fast_exp2", "expm1", "log", "log2", "log1p"}
    | {"sin", "cos", "tan", "asin", "acos", "atan", "atan2"}
    | {"sinh", "cosh", "tanh", "asinh", "acosh", "atanh"}
    | {"sigmoid", "erf", "gelu"}
)


def binary(op: str, a: npt.ArrayLike, b: npt.ArrayLike, dtype: DType) -> Array:
    """`a op b`, both of type `dtype`; comparisons return bool, everything else `dtype`."""
    return _apply(op, BINARY_OPERATORS, (a, b), dtype, op in COMPARISONS)


def unary(op: str, x: npt.ArrayLike, dtype: DType) -> Array:
    """`op x`, of type `dtype`; "isnan" returns bool."""
    return _apply(op, UNARY_OPERATORS, (x,), dtype, op == "isnan")


def divides_by_zero(op: str, b: npt.ArrayLike, dtype: DType) -> Array:
    """The mask of zero divisors `b` of an integer `op`, for which the result is unspecified."""
    divisor = as_storage(b, dtype)
    if op in ("//", "%") and dtype.is_integer:
        return np.asarray(divisor == 0)
    return np.zeros(divisor.shape, np.bool_)


def _apply(
    op: str,
    operators: dict[str, Operator],
    operands: tuple[npt.ArrayLike, ...],
    dtype: DType,
    gives_bool: bool,
) -> Array:
    if op not in operators:
        raise ValueError(f"there is no operator {op!r} with {len(operands)} operands")
    operator = operators[op]
    if dtype.kind not in operator.kinds or (dtype.is_float and dtype not in _COMPUTED_IN):
        hint = "; use '//'" if op == "/" and dtype.is_integer else ""
        raise TypeError(f"{op!r} is not defined on {dtype}{hint}")
    computed_in = dtype
    if dtype.is_float:
        computed_in = f64 if op in MATH_FUNCTIONS else _COMPUTED_IN[dtype]
    arrays = [convert(as_storage(x, dtype), dtype, computed_in) for x in operands]
    with np.errstate(all="ignore"):
        result = np.asarray(operator.evaluate(*arrays))
    return convert(result, boolean if gives_bool else computed_in, boolean if gives_bool else dtype)


# The float types with arithmetic; f8 and tf32 have conversions only.
_COMPUTED_IN: dict[DType, DType] = {f16: f32, bf16: f32, f32: f32, f64: f64}
