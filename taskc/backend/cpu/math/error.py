"""erf and gelu, by the tail of the normal distribution."""

from __future__ import annotations

from math import inf, nan, sqrt

from taskc.backend.cpu.math.exponential import reduced, times_power
from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.math.tables import ERF, TAIL, TAIL_CENTER, TAIL_END
from taskc.ir.types import f32, f64

# From here on erf rounds to 1.
_ERF_END = {f32: 4.0, f64: 6.0}


def erf(x: Term) -> Term:
    """x + x p(x**2) up to 1, and above it 1 - 2 Phi(-sqrt(2) x)."""
    size = abs(x)
    z = x * x
    near = x.fused(z.polynomial(ERF), x)
    above, rest, shifted = _tail(size.clamped(high=_ERF_END[x.dtype]) * sqrt(2))
    # Phi is (1 - above) / center * rest: less of it than of 1, so the difference loses nothing.
    scale = 2 / TAIL_CENTER[x.dtype][0]
    far = 1 - times_power(above.fused(-scale, scale) * rest, shifted)
    return (size < 1).select(near, far.signed_as(x))


def gelu(x: Term) -> Term:
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|), which has the sign of x and cancels nowhere."""
    size = abs(x)
    above, rest, shifted = _tail(size.clamped(high=TAIL_END[x.dtype][0]))
    lost = times_power(above * rest, shifted)
    result = abs((x > 0).select(x, x.of(0)) - lost).signed_as(x)
    # inf * 0
    return x.equals(-inf).select(nan, result)


def _tail(x: Term) -> tuple[Term, Term, Term]:
    """x Phi(-x) = a * b * 2**n for 0 <= x <= TAIL_END: a = x / (x + center), b and n with magic added.

    Phi(-x) = exp(-x**2 / 2) / (x + center) * p(t), t = (x - center) / (x + center) = 2 a - 1. The square
    takes two parts, for an absolute error in it is a relative one in the exponential.
    """
    center = TAIL_CENTER[x.dtype][0]
    above = x.divided_by_sum(center, x)
    halved = x * -0.5
    square = halved * x
    more, shifted = reduced(square, halved.fused(x, -square))
    smooth = above.fused(2, -1).polynomial(TAIL)
    return above, smooth.fused(more, smooth), shifted
