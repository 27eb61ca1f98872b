"""Activations that are made of other functions, for kernels, `tc.compute`, and templates with an epilogue.

`tc.gelu` and `tc.sigmoid` are operators of the IR (elementwise.py); these are expressions of such.
"""

from __future__ import annotations

from typing import Any

from taskc.lang.elementwise import exp, log1p, sigmoid
from taskc.lang.functions import function


@function
def relu(x: Any) -> Any:
    """max(x, 0); NaN stays NaN."""
    return max(x, 0)


@function
def silu(x: Any) -> Any:
    """x * sigmoid(x), also called swish."""
    return x * sigmoid(x)


@function
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow, and without rounding small results to 0."""
    return max(x, 0) + log1p(exp(-abs(x)))


@function
def mish(x: Any) -> Any:
    """x * tanh(softplus(x)), by the power of -abs(x) alone."""
    power = exp(-abs(x))
    numerator = 1 + 2 * power if x >= 0 else power * (power + 2)
    return x * numerator / (numerator + 2 * power * power if x >= 0 else numerator + 2)


@function
def hardswish(x: Any) -> Any:
    """x * min(max(x + 3, 0), 6) / 6."""
    return x * min(max(x + 3, 0), 6) / 6
