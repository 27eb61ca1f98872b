"""Mathematical functions on a scalar or on all lanes, without branches except for large angles.

Results are within 2 ulps, pow within 4. f16 and bf16 are computed in f32 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable

from taskc.backend.cpu.instructions import Value
from taskc.backend.cpu.math.error import erf, gelu
from taskc.backend.cpu.math.exponential import (
    cosh,
    exp,
    exp2,
    expm1,
    integer_power,
    log,
    log1p,
    log2,
    pow,
    sigmoid,
    sinh,
    tanh,
)
from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.math.trigonometric import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    sin,
    tan,
)
from taskc.backend.cpu.native import Elementwise
from taskc.ir.types import bf16, f16, f32

__all__ = ["math_function"]


def _rsqrt(x: Term) -> Term:
    return 1 / x.unary("sqrt")


_FUNCTIONS: dict[str, Callable[..., Term]] = {
    "pow": pow,
    "rsqrt": _rsqrt,
    "exp": exp,
    "exp2": exp2,
    "fast_exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "gelu": gelu,
}


def math_function(elementwise: Elementwise, name: str, operands: tuple[Value, ...]) -> Value:
    """Compute a function of MATH_FUNCTIONS."""
    dtype = operands[0].dtype
    terms = [Term(elementwise, operand) for operand in operands]
    if dtype.is_integer:
        return integer_power(*terms).value
    if dtype in (f16, bf16):
        return _FUNCTIONS[name](*(term.convert(f32) for term in terms)).convert(dtype).value
    return _FUNCTIONS[name](*terms).value
