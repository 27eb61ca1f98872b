"""Operators that change the element type."""

from __future__ import annotations

import math
from typing import Any

import taskc as tc
from taskc import DType, boolean, f8e4m3, f8e5m2, f32, u8
from taskc.operators.call import Call, Made, Tensor, operator
from taskc.operators.generators import element_type

_TOO_LARGE = {  # from here on a number rounds to more than the type's largest
    f8e4m3: math.nextafter(464.0, math.inf),
    f8e5m2: 61440.0,
}


def converted(call: Call, dtype: DType) -> Tensor:
    """The first input in another element type."""
    source = call.given(0)
    if call.dtype(0) is dtype:
        return source
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
    """An 8-bit float where a number beyond the largest becomes infinite, or NaN in a type without infinity."""
    made: Any = call.compute(x.shape, lambda *at: x[at].to(f32))
    most, nan = _TOO_LARGE[dtype], math.nan
    if dtype is f8e4m3:
        return call.compute(
            x.shape, lambda *at: made[at].to(dtype) if abs(made[at]) < most else dtype(nan)
        )

    def value(*at):
        infinity = u8(0x7C if made[at] > 0 else 0xFC).bitcast(dtype)
        return infinity if abs(made[at]) >= most else made[at].to(dtype)

    return call.compute(x.shape, tc.function(value))


def _wrapped(number: Any, dtype: DType) -> Any:
    """An integer reduced to the low bits that its type holds."""
    if not isinstance(number, int):
        return number
    return (number - int(dtype.minimum)) % (1 << dtype.bits) + int(dtype.minimum)


@operator("Cast")
def cast(call: Call) -> Made:
    return converted(call, element_type(call, "to", tc.f32))


@operator("BitCast", since=26)
def bit_cast(call: Call) -> Made:
    call.require_kernel()
    x, dtype = call.tensor(0), element_type(call, "to", tc.f32)
    if x.dtype.bits != dtype.bits:
        raise call.node.error(f"{x.dtype} and {dtype} have other numbers of bits")
    if dtype is x.dtype:
        return x  # type: ignore[no-any-return]
    if dtype is boolean:
        raise call.node.error("not all bits of a number are those of a bool")
    if x.dtype is boolean:
        return call.compute(x.shape, lambda *at: u8(1 if x[at] else 0).bitcast(dtype))
    return call.compute(x.shape, lambda *at: x[at].bitcast(dtype))


@operator("CastLike", since=15)
def cast_like(call: Call) -> Made:
    return converted(call, call.dtype(1))
