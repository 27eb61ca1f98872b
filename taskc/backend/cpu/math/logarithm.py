"""log, log2, log1p and pow."""

from __future__ import annotations

from math import inf, nan

from taskc.backend.cpu.math.exponential import bias, exp2
from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.math.tables import LN2, LOG, LOG2_E, LOG_EXTENDED, TWO_THIRDS
from taskc.ir.types import f32, f64

# The bits of the square root of 1/2.
_LOWEST = {f32: 0x3F3504F3, f64: 0x3FE6A09E667F3BCD}
# 2**p times a subnormal number is normal.
_LIFT = {f32: 24, f64: 54}


def log(x: Term) -> Term:
    """e log(2) + log(m), where x = 2**e m."""
    exponent, f = _split(x)
    ln2, ln2_low = LN2[x.dtype]
    return _special(x, exponent.fused(ln2, exponent.fused(ln2_low, _log_above(f))))


def log2(x: Term) -> Term:
    """e + log(m) / log(2), where x = 2**e m."""
    exponent, f = _split(x)
    high, low = LOG2_E[x.dtype]
    natural = _log_above(f)
    return _special(x, natural.fused(high, natural.fused(low, exponent)))


def log1p(x: Term, low: Term | None = None) -> Term:
    """log(u), u = 1 + x, corrected for the digits of x that u lost; near 0 it is x. It has the sign of x.

    low  a second part of x, below half an ulp of it
    """
    u = x + 1
    lost = x - (u - 1)
    exponent, f = _split(u)
    ln2, ln2_low = LN2[x.dtype]
    natural = _log_above(lost.fused((f + 1) / u, f))
    if low is not None:
        natural = natural + low / u
    result = exponent.fused(ln2, exponent.fused(ln2_low, natural))
    return _special(u, result).signed_as(x)


def pow(x: Term, y: Term) -> Term:
    """2**(y log2 |x|), with more bits in the product than in the result; negative x needs an integer y."""
    magnitude = abs(x)
    if x.dtype is f32:
        wide = exp2(y.convert(f64) * log2(magnitude.convert(f64)))
        result = wide.convert(f32)
    else:
        result = _power(magnitude, y)
    # 1**y is 1 for every y, and x**0 for every x.
    result = (magnitude.equals(1) | y.equals(0)).select(1, result)
    half = y * 0.5
    is_integer = y.unary("floor").equals(y)
    is_odd = is_integer & half.unary("floor").differs(half)
    sign = is_odd.select(x.sign(), x.sign().of(0))
    result = (result.bits() ^ sign).as_float()
    has_none = (x < 0) & (x > -inf) & is_integer.unary("not")
    return has_none.select(nan, result)


def _split(x: Term) -> tuple[Term, Term]:
    """e and m - 1, where x = 2**e m, sqrt(1/2) <= m < sqrt(2)."""
    dtype = x.dtype
    mantissa_bits, lift = dtype.mantissa_bits, _LIFT[dtype]
    is_small = x < 2.0 ** (1 - bias(dtype))
    bits = is_small.select(x * 2.0**lift, x).bits()
    one = bias(dtype) << mantissa_bits
    moved = bits + (one - _LOWEST[dtype])
    # The exponent field becomes the low bits of a large float, from which that float is subtracted.
    large = 2**mantissa_bits
    above = bias(dtype) + large
    large_bits = bias(dtype) + mantissa_bits << mantissa_bits
    field = (moved >> mantissa_bits | large_bits).as_float()
    exponent = field - is_small.select(above + lift, field.of(above))
    m = ((moved & 2**mantissa_bits - 1) + _LOWEST[dtype]).as_float()
    return exponent, m - 1


def _log_above(f: Term) -> Term:
    """log(1 + f) = 2 s + s z p(z), s = f / (2 + f), z = s**2; computed as f - s (f - z p(z)), since 2 s = f - s f."""
    s = f / (f + 2)
    z = s * s
    return (-s).fused((-z).fused(z.polynomial(LOG[f.dtype]), f), f)


def _special(x: Term, result: Term) -> Term:
    """Set the results for arguments that are not positive numbers."""
    result = (x < inf).select(result, x)
    result = x.equals(0).select(-inf, result)
    return (x < 0).select(nan, result)


def _power(x: Term, y: Term) -> Term:
    """2**(y log2(x)) for x >= 0. The logarithm has 64 bits, as the product has up to 11 before the point."""
    high, low = _log2_extended(x)
    product = y * high
    product_low = y.fused(high, -product) + y * low
    # An infinite product has no second part; one that is far too large needs none.
    return exp2(product, (abs(product) < 2000).select(product_low, product_low.of(0)))


def _log2_extended(x: Term) -> tuple[Term, Term]:
    """log2(x) in two parts. Each product and quotient below has a second part: the error of its rounding."""
    exponent, f = _split(x)
    g = f + 2
    g_low = f - (g - 2)
    inverse = 1 / g
    s = f * inverse
    s_low = ((-s).fused(g, f) - s * g_low) * inverse
    z = s * s
    z_low = s.fused(s, -z) + 2 * s * s_low
    # w = 2 + 2/3 z + z**2 p(z), so that the logarithm is s w.
    third, third_low = TWO_THIRDS[x.dtype]
    linear = z * third
    linear_low = z.fused(third, -linear) + z_low.fused(third, z * third_low)
    square = z * z * z.polynomial(LOG_EXTENDED[x.dtype])
    more = linear + square
    more_low = linear - more + square + linear_low
    w = more + 2
    w_low = 2 - w + more + more_low
    natural = s * w
    natural_low = s.fused(w, -natural) + s.fused(w_low, s_low * w)
    e, e_low = LOG2_E[x.dtype]
    binary = natural * e
    binary_low = natural.fused(e, -binary) + natural.fused(e_low, natural_low * e)
    high = exponent + binary
    low = exponent - high + binary + binary_low
    is_ordinary = (x > 0) & (x < inf)
    # -inf and inf, or NaN.
    outside = x.equals(0).select(-inf, x)
    return is_ordinary.select(high, outside), is_ordinary.select(low, low.of(0))
