"""Operators that change the element type."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, boolean
from taskc.onnx.operators import Call, Made, Tensor, operator
from taskc.onnx.operators.generators import element_type


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
    return call.compute(x.shape, lambda *at: x[at].to(dtype))


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
