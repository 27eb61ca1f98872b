"""erf and gelu, computed from the tail of the normal distribution."""

from __future__ import annotations

from math import inf, nan, sqrt

from taskc.backend.cpu.math.exponential import reduced, times_power
from taskc.backend.cpu.math.notation import Term, lookup_of_32, where_rare
from taskc.backend.cpu.math.tables import (
    ERF,
    LOST,
    LOST_WIDTH,
    TAIL,
    TAIL_CENTER,
    TAIL_END,
)
from taskc.ir.types import f32, f64

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
    if x.dtype is not f32:
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
