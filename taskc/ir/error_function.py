"""erf and erfc of f64 arrays, to about 1e-15 relative.

W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), with
the coefficients of his CALERF.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
