"""sin, cos and tan, and their inverses and those of sinh, cosh and tanh.

|x| = n pi / 2 + r, |r| <= pi / 4. Small n: n times pi / 2 is subtracted in parts, each step exact or
with an error relative to the remainder. Large n: x is an integer times a power of two; of 2 / pi only
those digits count whose product with it isn't a multiple of 4.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

from taskc.backend.cpu.math.exponential import bias, log1p
from taskc.backend.cpu.math.notation import (
    ASIN,
    ATAN,
    COS,
    HALF_PI,
    LN2,
    SIN,
    TAN,
    TWO_OVER_PI,
    TWO_OVER_PI_WORDS,
    Term,
    Terms,
    lookup,
    where_rare,
)
from taskc.ir.types import f32, f64, i64, u64

# From here on n is large: n times the error of pi / 2's parts begins to be visible in r.
_LARGE = {f32: 2.0**16, f64: 2.0**30}


def sin(x: Term) -> Term:
    """sin(r), cos(r), -sin(r) or -cos(r), by n mod 4. The function is odd."""
    quadrant, r, _ = _reduced(abs(x))
    return _flipped(_sin_or_cos(quadrant, r), quadrant, x.sign())


def cos(x: Term) -> Term:
    """sin, a quarter turn further. The function is even."""
    quadrant, r, _ = _reduced(abs(x))
    quadrant = quadrant + 1
    return _flipped(_sin_or_cos(quadrant, r), quadrant, x.sign().of(0))


def tan(x: Term) -> Term:
    """tan(r) or -1 / tan(r), by n mod 2. The function is odd.

    Near pi / 4 an error in r counts twice, hence a second part of r and of the tangent.
    """
    quadrant, r, r_low = _reduced(abs(x))
    z = r * r
    more = (r * z).fused(z.polynomial(TAN[r.dtype]), r_low.fused(z, r_low))
    near = r + more
    near_low = r - near + more
    inverse = -1 / near
    missing = inverse.fused(near_low, inverse.fused(near, 1))
    far = inverse.fused(missing, inverse)
    # tan(0) is 0, and has no inverse.
    result = (quadrant & 1).differs(0).select(far, near)
    return (result.bits() ^ x.sign()).as_float()


def _sin_or_cos(quadrant: Term, r: Term) -> Term:
    z = r * r
    sine = (r * z).fused(z.polynomial(SIN[r.dtype]), r)
    cosine = (z * z).fused(z.polynomial(COS[r.dtype]), z.fused(-0.5, 1))
    return (quadrant & 1).differs(0).select(cosine, sine)


def _flipped(x: Term, quadrant: Term, sign: Term) -> Term:
    """Flip the sign by `sign`, and once more in quadrants 2 and 3."""
    half = (quadrant & 2) << x.dtype.bits - 2
    return (x.bits() ^ (half ^ sign)).as_float()


def _reduced(x: Term) -> Terms:
    """n, whose two low bits are right, and r in two parts, for x >= 0."""
    dtype = x.dtype
    magic = 3 * 2.0 ** (dtype.mantissa_bits - 1)
    shifted = x.fused(TWO_OVER_PI[dtype][0], magic)
    n = shifted - magic
    first, second, third = HALF_PI[dtype]
    exact = n.fused(-first, x)
    r = n.fused(-third, n.fused(-second, exact))
    # The second part of r: the difference of two roundings, and the rounding errors of the operations.
    product = n * second
    near = exact - product
    left = exact - near - product - n.fused(second, -product)
    low = n.fused(-third, near - r + left)
    usual = shifted.bits(), r, low
    return where_rare(x >= _LARGE[dtype], "large_angle", _reduced_if_large, (x,), usual)


def _reduced_if_large(x: Term) -> Terms:
    """Reduce large numbers; an f32, too, in f64."""
    large = _LARGE[x.dtype]
    # The digits of a small number would lie before the table.
    n, r, low = _reduced_large((x >= large).select(x, x.of(large)).convert(f64))
    first = r.convert(x.dtype)
    second = (r - first.convert(f64) + low).convert(x.dtype)
    return n.convert(first.bits().dtype), first, second


def _reduced_large(x: Term) -> Terms:
    """n and r of a large f64.

    x = m 2**e, and the relevant digits of 2 / pi begin with the one of weight 2 / 2**e: m times 192 digits
    from there is n mod 4 with 62 digits in `high`, and 64 more in `low`.
    """
    bits = x.bits()
    m = (bits & 2**52 - 1) | 2**52
    first = (bits >> 52) - (bias(f64) + 52 + 2 - 64)
    index, shift = first >> 6, first & 63
    words = [lookup("two_over_pi", TWO_OVER_PI_WORDS, u64, index + k) for k in range(4)]
    digits = [a << shift | b >> 64 - shift for a, b in pairwise(words)]
    second_high, second_low = _product(m, digits[1])
    low = second_low + _product(m, digits[2])[0]
    carry = (low < second_low).convert(u64)
    high = m * digits[0] + second_high + carry
    n = (high + 2**61) >> 62
    # r in quarters of a turn: an f64 takes the upper digits exactly; the lower ones are added.
    fraction = high - (n << 62)
    few = fraction & 0x7FF
    upper = (fraction - few).reinterpreted(i64).convert(f64) * 2.0**-62
    lower = few.convert(f64).fused(2.0**-62, low.convert(f64) * 2.0**-126)
    half_pi, half_pi_low, _ = HALF_PI[f64]
    product = upper * half_pi
    left = lower.fused(half_pi, upper.fused(half_pi, -product))
    low = upper.fused(half_pi_low, left)
    # An infinity has no r.
    r = product + low + (x - x)
    return n, r, product - r + low


def _product(a: Term, b: Term) -> tuple[Term, Term]:
    """The upper and the lower 64 bits of a product."""
    a_low, a_high = a & 2**32 - 1, a >> 32
    b_low, b_high = b & 2**32 - 1, b >> 32
    middle = a_high * b_low + ((a_low * b_low) >> 32)
    other = a_low * b_high + (middle & 2**32 - 1)
    return a_high * b_high + (middle >> 32) + (other >> 32), a * b


# Beyond this 1 + x**2 equals x**2 to a logarithm, while the square is still finite.
_LARGE_INVERSE = {f32: 2.0**28, f64: 2.0**57}


def asin(x: Term) -> Term:
    """pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) above 1/2."""
    is_far, s, more = _asin(abs(x))
    high, low, _ = HALF_PI[x.dtype]
    most = high - 2 * s
    rest = high - most - 2 * s
    return is_far.select(most + (rest + (low - 2 * more)), s + more).signed_as(x)


def acos(x: Term) -> Term:
    """acos(x) = pi / 2 - asin(x); above 1/2 it is 2 asin(sqrt((1 - x) / 2)), and below -1/2 pi - acos(-x)."""
    is_far, s, more = _asin(abs(x))
    high, low, _ = HALF_PI[x.dtype]
    is_added = is_far.unary("not") & (x < 0)
    rest = is_added.select(high + s, high - s) + is_added.select(low + more, low - more)
    return is_far.select((x < 0).select(rest, s + more) * 2, rest)


def _asin(size: Term) -> tuple[Term, Term, Term]:
    """Whether |x| is above 1/2, and two terms that sum to asin(|x|), or above 1/2 to asin(sqrt((1 - |x|) / 2))."""
    is_far = size > 0.5
    z = is_far.select((1 - size) * 0.5, size * size)
    s = is_far.select(z.unary("sqrt"), size)
    return is_far, s, s * z * z.polynomial(ASIN[s.dtype])


def atan(x: Term) -> Term:
    """pi / 2 - atan(1 / |x|) above 1."""
    size = abs(x)
    is_far = size > 1
    near = _near_atan(is_far.select(1 / size, size))
    high, low, _ = HALF_PI[x.dtype]
    return is_far.select(low - near + high, near).signed_as(x)


def atan2(y: Term, x: Term) -> Term:
    """atan of the smaller magnitude over the larger one, counted from the nearest axis: ±x or ±y."""
    width, height = abs(x), abs(y)
    is_steep, is_left = height > width, x.of(1).signed_as(x) < 0
    small, large = is_steep.select(width, height), is_steep.select(height, width)
    # Both may be 0 or infinite; for 0 the angle is that of the axis.
    t = large.equals(0).select(small, small.equals(large).select(1, small / large))
    near = _near_atan(t)
    high, low, _ = HALF_PI[x.dtype]
    axis = is_steep.select(1, is_left.select(2, x.of(0)))
    turned = (is_steep ^ is_left).select(-near, near)
    return (axis * low + turned + axis * high).signed_as(y)


def _near_atan(t: Term) -> Term:
    """atan(t) for 0 <= t <= 1."""
    z = t * t
    return (t * z).fused(z.polynomial(ATAN[t.dtype]), t)


def asinh(x: Term) -> Term:
    """log(1 + y), where y = |x| + x**2 / (1 + sqrt(1 + x**2)); log(2 |x|) where that is large."""
    size = abs(x)
    square = size * size
    root = size.fused(size, 1).unary("sqrt")
    return _log1p_or_twice(size, size, square / (root + 1)).signed_as(x)


def acosh(x: Term) -> Term:
    """log(1 + t + sqrt(t t + 2 t)), where t = x - 1; log(2 x) where that is large."""
    t = x - 1
    result = _log1p_or_twice(t, t.fused(t, t + t).unary("sqrt"), t)
    return (x < 1).select(nan, result)


def _log1p_or_twice(x: Term, large: Term, small: Term) -> Term:
    """log(1 + large + small), or log(2 x) for large x."""
    is_large = x > _LARGE_INVERSE[x.dtype]
    y = large + small
    low = is_large.select(0, large - y + small)
    logarithm = log1p(is_large.select(x, y), low)
    return is_large.select(logarithm + LN2[x.dtype][0], logarithm)


def atanh(x: Term) -> Term:
    """log((1 + |x|) / (1 - |x|)) / 2. For |x| above 1 that is NaN, as the logarithm of a negative number."""
    size = abs(x)
    quotient = (size + size).divided_by_sum(1, -size)
    # A quotient by 0 has no remainder.
    return (log1p(size.equals(1).select(inf, quotient)) * 0.5).signed_as(x)
