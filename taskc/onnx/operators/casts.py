"""Operators that change the element type."""

from __future__ import annotations

import math
from typing import Any

import taskc as tc
from taskc import DType, boolean, f8e4m3, f8e5m2, f32
from taskc.onnx.operators import Call, Made, Tensor, operator
from taskc.onnx.operators.generators import element_type

_MOST = math.nextafter(464.0, math.inf)  # from here on a number is rounded to more than f8e4m3 has


def converted(call: Call, dtype: DType) -> Tensor:
    """The first input in another element type."""
    given = call.given(0)
    if call.dtype(0) is dtype:
        return given
    if dtype.is_float:
        call.require_kernel()
    x: Any = call.tensor(0)
    if dtype is boolean:
        return call.compute(x.shape, lambda *at: x[at] != 0, dtype)
    if call.by_python:
        return call.compute(x.shape, lambda *at: _wrapped(x[at], dtype), dtype)
    if x.dtype is boolean:
        return call.compute(x.shape, lambda *at: dtype(1) if x[at] else dtype(0))
    if dtype in (f8e4m3, f8e5m2) and not call.attribute("saturate", 1):
        return _unsaturated(call, x, dtype)
    return call.compute(x.shape, lambda *at: x[at].to(dtype))


def _unsaturated(call: Call, x: Any, dtype: DType) -> Tensor:
    """A float of 8 bits, which is no number where it would be more than the largest."""
    if dtype is not f8e4m3:
        raise call.node.error("taskc converts to f8e5m2 with saturation alone")
    made: Any = call.compute(x.shape, lambda *at: x[at].to(f32))
    nan = math.nan
    return call.compute(
        x.shape, lambda *at: made[at].to(dtype) if abs(made[at]) < _MOST else dtype(nan)
    )


def _wrapped(number: Any, dtype: DType) -> Any:
    """An integer as a type has it, which keeps its last bits."""
    if not isinstance(number, int):
        return number
    return (number - int(dtype.minimum)) % (1 << dtype.bits) + int(dtype.minimum)


@operator("Cast")
def cast(call: Call) -> Made:
    return converted(call, element_type(call, "to", tc.f32))


@operator("CastLike", since=15)
def cast_like(call: Call) -> Made:
    return converted(call, call.dtype(1))
