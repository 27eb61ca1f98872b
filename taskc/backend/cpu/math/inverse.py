"""The inverses of sin, cos and tan, and of sinh, cosh and tanh."""

from __future__ import annotations

from math import inf, nan

from taskc.backend.cpu.math.logarithm import log1p
from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.math.tables import ASIN, ATAN, HALF_PI, LN2
from taskc.ir.types import f32, f64

# Beyond this 1 + x**2 equals x**2 to a logarithm, while the square is still finite.
_LARGE = {f32: 2.0**28, f64: 2.0**57}


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
    is_large = x > _LARGE[x.dtype]
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
