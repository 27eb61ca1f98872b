"""Mathematical functions on a scalar or on all lanes, without branches except for large angles.

Results are within 2 ulps, pow within 4. f16 and bf16 are computed in f32 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable

from taskc.backend.cpu.instructions import LaneValue
from taskc.backend.cpu.math import exponential, trigonometric
from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.native import Elementwise
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.types import bf16, f16, f32

__all__ = ["math_function"]

# The formula of a function is that of its name in one of the files.
_FUNCTIONS: dict[str, Callable[..., Term]] = {
    name: formula
    for file in (exponential, trigonometric)
    for name, formula in vars(file).items()
    if name in MATH_FUNCTIONS
}
assert _FUNCTIONS.keys() == MATH_FUNCTIONS


def math_function(
    elementwise: Elementwise, name: str, operands: tuple[LaneValue, ...]
) -> LaneValue:
    """Compute a function of MATH_FUNCTIONS."""
    dtype = operands[0].dtype
    terms = [Term(elementwise, operand) for operand in operands]
    if dtype.is_integer:
        return exponential.integer_power(*terms).value
    if dtype in (f16, bf16):
        return _FUNCTIONS[name](*(term.convert(f32) for term in terms)).convert(dtype).value
    return _FUNCTIONS[name](*terms).value
