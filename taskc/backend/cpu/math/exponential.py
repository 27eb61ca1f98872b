"""exp, exp2, expm1, and the functions computed from them: sigmoid, sinh, cosh, tanh."""

from __future__ import annotations

from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.math.tables import EXP, EXP2, LN2, LOG2_E
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
