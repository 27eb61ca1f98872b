"""Quantized numbers: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import DType, f32, i32, u8
from taskc.kernels.reductions import reduction
from taskc.operators.blocked import elements_of, like
from taskc.operators.call import Call, Held, Made, operator
from taskc.operators.operands import (
    axis_of,
    computed,
    element_type,
    is_one,
    size,
    template,
    tensors,
)
from taskc.programs.tracing import TensorHandle

_reduction = template(reduction)

Element = Callable[..., Any]  # a function of the indices of an element


@tc.function
def clamped(value, dtype):
    """The value clamped to an integer type's range, and converted."""
    return min(max(value, dtype.minimum), dtype.maximum).to(dtype)


def requantized(
    sums: TensorHandle, scales: tuple[Element, Element, Element], zero: Element, dtype: DType
) -> TensorHandle:
    """Sums of products of quantized numbers, quantized again by the scales of both factors and of the result."""
    left, right, made = scales

    @tc.function
    def quantized(*at):
        scaled = sums[at].to(f32) * (left(at).to(f32) * right(at).to(f32) / made(at).to(f32))
        return clamped(round(scaled) + zero(at).to(f32), dtype)

    return computed(sums.shape, quantized)


@operator("QuantizeLinear")
def quantize(call: Call) -> Held:
    _, scale, zero = tensors(call, 3)
    x = call.images(0)
    read = elements_of(x)
    dtype = _quantized_type(call, zero)
    step, origin = _parameter(call, x, scale), _parameter(call, x, zero)
    wide = f32 if x.dtype is not scale.dtype or x.dtype.bits < 32 else x.dtype
    if call.attribute("precision", 0):
        wide = element_type(call, call.attribute("precision"))
    if dtype.is_float:
        if not call.attribute("saturate", 1):
            raise call.node.error(
                "without saturation its numbers would overflow, and taskc's saturate"
            )
        return like(
            x, dtype, tc.function(lambda *at: (read[at].to(wide) / step(at).to(wide)).to(dtype))
        )

    @tc.function
    def quantized(*at):
        return clamped(round(read[at].to(wide) / step(at).to(wide)) + origin(at).to(wide), dtype)

    return like(x, dtype, quantized)


@operator("DequantizeLinear")
def dequantize(call: Call) -> Held:
    _, scale, zero = tensors(call, 3)
    x = call.images(0)
    dtype = scale.dtype
    if call.attribute("output_dtype", 0):
        dtype = element_type(call, call.attribute("output_dtype"))
    step, origin = _parameter(call, x, scale), _parameter(call, x, zero)
    read = elements_of(x)
    # Differences of 32-bit integers are exact in i32, and all others in f32.
    between = i32 if x.dtype is i32 else f32

    @tc.function
    def dequantized(*at):
        return ((read[at].to(between) - origin(at).to(between)).to(f32) * step(at).to(f32)).to(
            dtype
        )

    return like(x, dtype, dequantized)


@operator("DynamicQuantizeLinear")
def quantize_by_range(call: Call) -> Made:
    (x,) = tensors(call, 1)
    count = size(x.shape)
    row = x.reshape(count)
    largest = _reduction("max", (count,), (0,), dtype=f32)(row)
    smallest = _reduction("min", (count,), (0,), dtype=f32)(row)

    @tc.function
    def step():
        width = max(largest[()], 0) - min(smallest[()], 0)
        return tc.where(width == 0, 1, width) / 255

    scale = computed((), step)
    zero = computed((), lambda: clamped(round(-min(smallest[()], 0) / scale[()]), u8))
    y = computed(x.shape, lambda *at: clamped(round(x[at] / scale[()]) + zero[()].to(f32), u8))
    return y, scale, zero


def _parameter(call: Call, x: Any, parameter: TensorHandle | None) -> Element:
    """The scale or zero point of an element of x: one for all, one for each index of an axis, or one for each block."""
    if parameter is None:
        return tc.function(lambda at: x.dtype(0))
    rank, extents = len(x.shape), parameter.shape
    if all(map(is_one, extents)):
        return tc.function(lambda at: parameter[tuple(0 for _ in range(len(extents)))])
    axis = axis_of(call, call.attribute("axis", 1), rank)
    if len(extents) == 1:
        return tc.function(lambda at: parameter[at[axis]])
    block = call.attribute("block_size", 0)
    if len(extents) != rank or block < 1:
        raise call.node.error(f"its scale has the shape {list(extents)}, and x {list(x.shape)}")
    return tc.function(
        lambda at: parameter[tuple(at[d] // block if d == axis else at[d] for d in range(rank))]
    )


def _quantized_type(call: Call, zero: TensorHandle | None) -> DType:
    if zero is not None:
        return zero.dtype
    number = call.attribute("output_dtype", 0)
    return element_type(call, number) if number else u8
