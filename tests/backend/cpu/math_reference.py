"""How far results are from the exact ones, in units of the last place."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

from taskc.ir import arithmetic
from tests.backend.cpu.math_kernel import Array

mp.mp.prec = 160

EXACT: dict[str, Callable[..., mp.mpf]] = {
    "pow": mp.power,
    "atan2": mp.atan2,
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "exp": mp.exp,
    "exp2": lambda x: mp.power(2, x),
    "fast_exp2": lambda x: mp.power(2, x),
    "expm1": mp.expm1,
    "log": mp.log,
    "log2": lambda x: mp.log(x) / mp.ln2,
    "log1p": mp.log1p,
    **{name: getattr(mp, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(mp, name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")},
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "erf": mp.erf,
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
}


def in_double(name: str, *operands: Array) -> Array:
    """What NumPy says: the error of its f64 is nothing beside an ulp of an f32."""
    operators = arithmetic.BINARY_OPERATORS if len(operands) == 2 else arithmetic.UNARY_OPERATORS
    with np.errstate(all="ignore"):
        return np.asarray(operators[name].evaluate(*(x.astype(np.float64) for x in operands)))


def single_errors(got: Array, wanted: Array) -> Array:
    """Of f32 results, from results in f64; infinite where NaN, infinity or the sign of 0 is wrong."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
        exponents = np.maximum((wanted.view(np.int64) >> 52 & 0x7FF) - 1023, -126) - 23
        ulps = (exponents + 1023 << 52).view(np.float64)
        errors = np.abs(got.astype(np.float64) - wanted) / ulps
    same = np.where(np.isnan(wanted), np.isnan(got), got == rounded)
    # Where either isn't finite, or the result is 0, there is only right and wrong.
    exact = ~np.isfinite(got) | ~np.isfinite(rounded) | (wanted == 0)
    errors[exact] = np.where(same[exact], 0, np.inf)
    errors[(np.signbit(got) != np.signbit(wanted)) & ~np.isnan(wanted)] = np.inf
    return errors


def double_error(name: str, got: float, *operands: float) -> float:
    """Of one f64 result for finite operands, from 160 bits."""
    wanted = EXACT[name](*map(mp.mpf, operands))
    largest = mp.mpf(2) ** 1024 * (1 - mp.mpf(2) ** -54)
    if abs(wanted) >= largest:
        return 0.0 if got == mp.sign(wanted) * np.inf else np.inf
    if wanted == 0:
        return 0.0 if got == 0 else np.inf
    exponent = max(mp.frexp(wanted)[1] - 53, -1074)
    return float(abs(mp.mpf(got) - wanted) / mp.mpf(2) ** exponent)
