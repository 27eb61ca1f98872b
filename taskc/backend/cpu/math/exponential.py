"""Exponentials and logarithms, the functions computed from them (sigmoid, sinh, cosh, tanh), and powers; erf and gelu.

erf and gelu are computed from the tail of the normal distribution.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, sqrt

from taskc.backend.cpu.math.notation import (
    ERF,
    EXP,
    EXP2,
    LN2,
    LOG,
    LOG2_E,
    LOG_EXTENDED,
    LOST,
    LOST_WIDTH,
    TAIL,
    TAIL_CENTER,
    TAIL_END,
    TWO_THIRDS,
    Term,
    lookup_of_32,
    where_rare,
)
from taskc.ir.types import DType, f32, f64

# Outside these ranges exp and exp2 are 0 or infinity.
_EXP_RANGE = {f32: (-104.0, 89.0), f64: (-746.0, 710.0)}
_EXP2_RANGE = {f32: (-151.0, 129.0), f64: (-1076.0, 1025.0)}
# Below the first number exp differs from 0 by less than half an ulp of 1; half of exp of the second is infinite.
_EXPM1_RANGE = {f32: (-20.0, 89.5), f64: (-40.0, 710.6)}
# From here on exp is so large that adding 1 makes no difference to a quotient.
_TANH_END = {f32: 20.0, f64: 40.0}


def magic(dtype: DType) -> float:
    """Adding this rounds a number to an integer n; the sum's low bits are those of n + 2 * bias."""
    return float(3 * 2 ** (dtype.mantissa_bits - 1) + 2 * bias(dtype))


def bias(dtype: DType) -> int:
    """The bias of exponents."""
    return int(2 ** (dtype.exponent_bits - 1) - 1)


def times_power(x: Term, shifted: Term) -> Term:
    """x * 2**n, where `shifted` is n + magic. One power may be out of range; two of half the exponent are not.

    The bits of either half are 2 * bias + n, halved: an exponent field, and bits above it that are shifted out.
    """
    scaled = x.times_power(shifted - magic(x.dtype))
    if scaled is not None:
        return scaled
    mantissa_bits = x.dtype.mantissa_bits
    doubled = shifted.bits()
    half = doubled >> 1
    rest = doubled - half
    return x * (half << mantissa_bits).as_float() * (rest << mantissa_bits).as_float()


def reduced(x: Term, low: Term | None = None) -> tuple[Term, Term]:
    """exp(x + low) as two terms (m, n + magic): it is (1 + m) * 2**n."""
    r, shifted = _reduced(x, low)
    return r.fused(r * r.polynomial(EXP[x.dtype]), r), shifted


def _reduced(x: Term, low: Term | None = None) -> tuple[Term, Term]:
    """r and n + magic, where x + low = n log(2) + r and |r| <= log(2) / 2; exp(r) - 1 = r + r**2 p(r)."""
    ln2, ln2_low = LN2[x.dtype]
    shifted = x.fused(LOG2_E[x.dtype][0], magic(x.dtype))
    n = shifted - magic(x.dtype)
    rest = n.fused(-ln2, x)
    return n.fused(-ln2_low, rest if low is None else rest + low), shifted


def exp(x: Term) -> Term:
    """exp(r) * 2**n; see _reduced."""
    r, shifted = _reduced(x.clamped(*_EXP_RANGE[x.dtype]))
    return times_power(r.polynomial((1, 1, *EXP[x.dtype])), shifted)


def exp2(x: Term, low: Term | None = None) -> Term:
    """2**(x + low) = 2**r * 2**n; 2**r = 1 + r * p(r), |r| <= 1/2."""
    x = x.clamped(*_EXP2_RANGE[x.dtype])
    shifted = x + magic(x.dtype)
    r = x - (shifted - magic(x.dtype))
    if low is not None:
        r = r + low
    return times_power(r.polynomial(EXP2[x.dtype]).fused(r, 1), shifted)


def fast_exp2(x: Term) -> Term:
    return exp2(x)


def sigmoid(x: Term) -> Term:
    """1 / (1 + exp(-x)); below 0 exp(x) / (1 + exp(x)), which doesn't overflow."""
    power = exp(-abs(x))
    return (x < 0).select(power, power.of(1)).divided_by_sum(1, power)


def expm1(x: Term) -> Term:
    """exp(x) - 1 as four times its quarter; numbers so tiny that the result is x would lose digits in a quarter."""
    minus_one, power = _quartered(x.clamped(*_EXPM1_RANGE[x.dtype]))
    return _is_tiny(x).select(x, minus_one.fused(power, power - 0.25) * 4)


def sinh(x: Term) -> Term:
    """(m + q) / 2, where m = exp(|x|) - 1 and q = m / (m + 1).

    Below 1 it is m - m q / 2, which is less sensitive to q's rounding. All terms are quarters of m and q, which don't
    overflow.
    """
    size = abs(x)
    minus_one, power = _quartered(size.clamped(high=_EXPM1_RANGE[x.dtype][1]))
    m = minus_one.fused(power, power - 0.25)
    q = m / m.fused(4, 1)
    half = (size < 1).select(m.fused(q * -2, m) * 2, m + q)
    return _is_tiny(x).select(x, (half * 2).signed_as(x))


def cosh(x: Term) -> Term:
    """(p + 1 / p) / 2, where p = exp(|x|), computed from a quarter of p."""
    minus_one, power = _quartered(abs(x).clamped(high=_EXPM1_RANGE[x.dtype][1]))
    quarter = minus_one.fused(power, power)
    return quarter.fused(2, 0.125 / quarter)


def _quartered(x: Term) -> tuple[Term, Term]:
    """m near 0 and a power of two p, with exp(x) = (1 + m) * 4 p."""
    minus_one, shifted = reduced(x)
    power = ((shifted.bits() - (bias(x.dtype) + 2)) << x.dtype.mantissa_bits).as_float()
    return minus_one, power


def _is_tiny(x: Term) -> Term:
    """Whether x**2 / 2 is less than a quarter of an ulp of x."""
    return abs(x) < 2.0 ** -(x.dtype.mantissa_bits + 2)


def tanh(x: Term) -> Term:
    """m / (m + 2), where m = exp(2 |x|) - 1 = 2**n * (exp(r) - 1) + (2**n - 1)."""
    reduced_minus_one, shifted = reduced((abs(x) * 2).clamped(high=_TANH_END[x.dtype]))
    # The low bits are n + 2 * bias; the bits above them are shifted out.
    power = ((shifted.bits() - bias(x.dtype)) << x.dtype.mantissa_bits).as_float()
    minus_one = reduced_minus_one.fused(power, power - 1)
    return minus_one.divided_by_sum(2, minus_one).signed_as(x)


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


def rsqrt(x: Term) -> Term:
    return 1 / x.unary("sqrt")


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


def integer_power(x: Term, y: Term) -> Term:
    """x**y modulo 2**bits, by repeated squaring.

    A negative power is the inverse of the positive one, truncated: 0, except for 1 and -1.
    """
    if y.value.number is not None and y.value.number >= 0:
        return _known_power(x, int(y.value.number))
    if not y.dtype.is_signed:
        return _integer_power(x, y)
    is_inverse = y < 0
    result = _integer_power(x, is_inverse.select(y & 1, y))
    is_whole = x.equals(1) | x.equals(-1)
    return (is_inverse & is_whole.unary("not")).select(0, result)


def _known_power(x: Term, n: int) -> Term:
    result = x.of(1)
    while n:
        if n & 1:
            result = result * x
        n >>= 1
        if n:
            x = x * x
    return result


def _integer_power(x: Term, y: Term) -> Term:
    """Powers with exponents that aren't negative, by a loop that ends where no lane has digits left.

    What it changes passes through memory.
    """
    elementwise, builder, kind = x.elementwise, x.elementwise.builder, x.value.type
    result, square, left = (builder.allocate(kind, "power") for _ in range(3))

    def load(place: str) -> Term:
        text = builder.impure(f"load {kind}, ptr {place}")
        return replace(x, value=replace(x.value, text=text, number=None))

    def store(term: Term, place: str) -> None:
        builder.emit(f"store {term.value.typed}, ptr {place}")

    for term, place in ((x.of(1), result), (x, square), (y, left)):
        store(term, place)
    head, body, end = (builder.label(hint) for hint in ("digits", "digit", "end"))
    builder.jump(head)
    builder.start(head)
    with builder.nested():
        builder.branch(elementwise.any(load(left).differs(0).value), body, end)
        builder.start(body)
        factor, digits, product = load(square), load(left), load(result)
        store((digits & 1).differs(0).select(product * factor, product), result)
        store(factor * factor, square)
        store(digits >> 1, left)
        builder.jump(head)
    builder.start(end)
    return load(result)


# From here on erf rounds to 1.
_ERF_END = {f32: 4.0, f64: 6.0}

# Adding this to an f32 rounds it to an integer, whose low bits are those of the sum.
_ROUNDER = 3.0 * 2**22


def erf(x: Term) -> Term:
    """x + x p(x**2) up to 1, and above it 1 - 2 Phi(-sqrt(2) x)."""
    size = abs(x)
    near = x.fused((x * x).polynomial(ERF[x.dtype]), x)
    root = size.clamped(high=_ERF_END[x.dtype]) * sqrt(2)
    center = TAIL_CENTER[x.dtype][0]
    inverse = 1 / (root + center)
    smooth = inverse.fused(-2 * center, 1).polynomial(TAIL[x.dtype]) * (inverse * 2)
    tail, shifted = _gauss(root)
    far = 1 - times_power(smooth.fused(tail, smooth), shifted)
    return (size < 1).select(near, far.signed_as(x))


def gelu(x: Term) -> Term:
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|), which has the sign of x and cancels nowhere."""
    if x.dtype is not f32 or x.elementwise.builder.bits < 512:  # lookups would be gathers
        return _gelu(x)
    # Beyond the last piece a positive number loses less than half an ulp.
    end = (len(LOST[0]) - 0.75) * LOST_WIDTH
    lost = _lost_in_pieces(abs(x).clamped(high=end))
    # A zero keeps its sign: -0 minus 0 is -0.
    usual = x.clamped(low=-0.0) - lost
    (result,) = where_rare(x < -end, "gelu", lambda x: (_gelu(x),), (x,), (usual,))
    return result


def _lost_in_pieces(x: Term) -> Term:
    """x Phi(-x) as a polynomial around the nearest of 32 centers."""
    shifted = x.fused(1 / LOST_WIDTH, _ROUNDER)
    t = (shifted - _ROUNDER).fused(-LOST_WIDTH, x)
    index = shifted.bits()
    return t.polynomial(
        [lookup_of_32(f"lost{power}", numbers, index) for power, numbers in enumerate(LOST)]
    )


def _gelu(x: Term) -> Term:
    """|x| Phi(-|x|) = a p(2 a - 1) exp(-x**2 / 2), a = |x| / (|x| + center). So many roundings would add up: a, p and
    their product have a second part, the error of their rounding.
    """
    size = abs(x).clamped(high=TAIL_END[x.dtype][0])
    center = TAIL_CENTER[x.dtype][0]
    divisor = size + center
    divisor_low = size - (divisor - center)
    inverse = 1 / divisor
    a = size * inverse
    a_low = (-a).fused(divisor_low, (-a).fused(divisor, size)) * inverse
    t = a.fused(2, -1)
    first, *others = TAIL[x.dtype]
    slope = t.polynomial(others)
    p = t.fused(slope, first)
    p_low = t.fused(slope, first - p)
    product = a * p
    # Approximately the derivative of a p(2 a - 1).
    growth = (a + a).fused(slope, p)
    product_low = a_low.fused(growth, a.fused(p_low, a.fused(p, -product)))
    more, shifted = _gauss(size)
    lost = times_power(product + product.fused(more, product_low), shifted)
    result = x.clamped(low=-0.0) - lost
    # inf * 0
    return x.equals(-inf).select(nan, result)


def _gauss(x: Term) -> tuple[Term, Term]:
    """exp(-x**2 / 2) in the form of `reduced`. The square has two parts: an absolute error in it is a relative
    one in the exponential."""
    halved = x * -0.5
    square = halved * x
    return reduced(square, halved.fused(x, -square))
