"""The functions of numbers: in a kernel of one element, in plain Python of a number.

Most are operators of the IR. Activations that are made of other functions are helpers, for kernels, `tc.compute`, and
templates with an epilogue.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from taskc.ir import arithmetic
from taskc.ir.types import f64, i64
from taskc.lang.functions import function
from taskc.lang.names import elementwise, of_bits, on_numbers
from taskc.lang.sizes import Size

V = TypeVar("V")

inf = math.inf


@elementwise
def exp(x: V) -> V:
    """eˣ."""


@elementwise
def exp2(x: V) -> V:
    """2ˣ."""


@elementwise
def fast_exp2(x: V) -> V:
    """2ˣ within 2⁻²² of its magnitude: a single instruction on CUDA."""


@elementwise
def expm1(x: V) -> V:
    """eˣ − 1, precise where x is near 0."""


@elementwise
def log(x: V) -> V:
    """The natural logarithm."""


@elementwise
def log2(x: V) -> V:
    """The logarithm to base 2."""


@elementwise
def log1p(x: V) -> V:
    """The logarithm of 1 + x, precise where x is near 0."""


@elementwise
def sin(x: V) -> V:
    """The sine."""


@elementwise
def cos(x: V) -> V:
    """The cosine."""


@elementwise
def tan(x: V) -> V:
    """The tangent."""


@elementwise
def asin(x: V) -> V:
    """The inverse of the sine."""


@elementwise
def acos(x: V) -> V:
    """The inverse of the cosine."""


@elementwise
def atan(x: V) -> V:
    """The inverse of the tangent."""


@elementwise
def sinh(x: V) -> V:
    """The hyperbolic sine."""


@elementwise
def cosh(x: V) -> V:
    """The hyperbolic cosine."""


@elementwise
def tanh(x: V) -> V:
    """The hyperbolic tangent."""


@elementwise
def asinh(x: V) -> V:
    """The inverse of the hyperbolic sine."""


@elementwise
def acosh(x: V) -> V:
    """The inverse of the hyperbolic cosine."""


@elementwise
def atanh(x: V) -> V:
    """The inverse of the hyperbolic tangent."""


@elementwise
def sqrt(x: V) -> V:
    """The square root."""


@elementwise
def rsqrt(x: V) -> V:
    """1 / sqrt(x)."""


@elementwise
def sigmoid(x: V) -> V:
    """1 / (1 + exp(-x))."""


@elementwise
def erf(x: V) -> V:
    """The error function."""


@elementwise
def gelu(x: V) -> V:
    """x * (1 + erf(x / sqrt(2))) / 2."""


@elementwise
def floor(x: V) -> V:
    """The largest integer that is not above x."""


@elementwise
def ceil(x: V) -> V:
    """The smallest integer that is not below x."""


@elementwise
def trunc(x: V) -> V:
    """x rounded towards zero."""


@elementwise
def isnan(x: Any) -> bool:
    """Whether x is NaN."""


@of_bits
def popcount(x: V) -> V:
    """How many bits of an integer are set."""


@of_bits
def leading_zeros(x: V) -> V:
    """How many bits above the highest one that is set; of 0 all."""


@of_bits
def trailing_zeros(x: V) -> V:
    """How many bits below the lowest one that is set; of 0 all."""


@of_bits
def reverse_bits(x: V) -> V:
    """The bits of an integer in the other order."""


@on_numbers
def isinf(x: Any) -> bool:
    """Whether x is infinite."""
    return math.isinf(x)


@on_numbers
def sign(x: V) -> V:
    """1, -1, or 0; a float's zero or NaN as it is."""
    return _sign(x)


@on_numbers
def cdiv(a: V, b: Any) -> V:
    """The quotient of integers, rounded up."""
    n: Any = a
    return (n + (b - 1)) // b if isinstance(a, Size) else -(-n // b)


@on_numbers
def truncdiv(a: V, b: Any) -> V:
    """The quotient of integers, truncated as C's `/`; 0 where b is 0."""
    return _truncdiv(a, b)


@on_numbers
def fmod(a: V, b: Any) -> V:
    """The remainder of a truncated quotient, with the sign of a: C's `fmod`, and `%` of integers."""
    made: Any
    if isinstance(a, int) and isinstance(b, int):
        made = a - b * _truncdiv(a, b)
    else:
        made = float(arithmetic.binary("fmod", np.float64(a), np.float64(b), f64))  # type: ignore[arg-type]
    return made


@on_numbers
def atan2(y: V, x: Any) -> V:
    """The angle of the point (x, y) from the x axis, within -π and π."""
    made: Any = math.atan2(y, x)  # type: ignore[arg-type]
    return made


@on_numbers
def dot_bytes(a: V, b: Any) -> V:
    """The sum of the products of a's bytes, with their signs, and b's, without: of integers with a sign."""
    made: Any = int(arithmetic.binary("dot_bytes", np.int64(a), np.int64(b), i64))  # type: ignore[arg-type]
    return made


@on_numbers
def fma(a: V, b: Any, c: Any) -> V:
    """a * b + c, rounded once."""
    made: Any = float(arithmetic.fma(np.float64(a), np.float64(b), np.float64(c), f64))  # type: ignore[arg-type]
    return made


@on_numbers
def where(condition: Any, then: V, otherwise: V) -> V:
    """`then` where the condition holds, else `otherwise`; only the one taken is evaluated."""
    return then if condition else otherwise


def _truncdiv(a: Any, b: Any) -> Any:
    return abs(a) // abs(b) * _sign(a) * _sign(b)


def _sign(x: Any) -> Any:
    return x if x != x or x == 0 else 1 if x > 0 else -1


@function
def relu(x: Any) -> Any:
    """max(x, 0); NaN stays NaN."""
    return max(x, 0)


@function
def silu(x: Any) -> Any:
    """x * sigmoid(x), also called swish."""
    return x * sigmoid(x)


@function
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow, and without rounding small results to 0."""
    return max(x, 0) + log1p(exp(-abs(x)))


@function
def mish(x: Any) -> Any:
    """x * tanh(softplus(x)), by the power of -abs(x) alone."""
    power = exp(-abs(x))
    numerator = 1 + 2 * power if x >= 0 else power * (power + 2)
    return x * numerator / (numerator + 2 * power * power if x >= 0 else numerator + 2)


@function
def hardswish(x: Any) -> Any:
    """x * min(max(x + 3, 0), 6) / 6."""
    return x * min(max(x + 3, 0), 6) / 6
