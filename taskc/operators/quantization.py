"""Quantized numbers: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and sums of products of bytes.

The sums are exact in i32, by instructions that multiply packed unsigned bytes by signed ones:

    sum((a - p) * (b - q))  =  sum(a * b) - p * (sum(b) - k * q) - q * sum(a)        p, q  the zero points

so that bytes are multiplied unchanged. The sums of a constant b are computed once, and those of a are needed only where
q isn't 0. An unsigned b is made signed by subtracting 128 from it and from q.
"""

from __future__ import annotations

from math import prod

import numpy as np

import taskc as tc
from taskc import DType, f32, i8, i32, u8
from taskc.kernels.matmul import product
from taskc.kernels.reductions import reduction
from taskc.operators.call import Call, Made, operator
from taskc.operators.operands import constant_of, is_one, kernel_of, size
from taskc.operators.tensors import (
    Extent,
    Function,
    Held,
    Images,
    Tensor,
    computed,
    dtype_of,
    elements_of,
    handle_of,
    like,
    reshaped,
)
from taskc.programs.tracing import Computed, Element, TensorHandle


@tc.function
def clamped(value: Computed, dtype: DType) -> Computed:
    """The float clamped to an integer type's range, and converted: a conversion to whole bytes clamps."""
    return (
        value.to(dtype)
        if dtype.bits >= 8
        else min(max(value, dtype.minimum), dtype.maximum).to(dtype)
    )


def requantized(
    sums: TensorHandle, scales: tuple[Function, Function, Function], zero: Function, dtype: DType
) -> TensorHandle:
    """Sums of products of quantized numbers, quantized again by the scales of both factors and of the result."""
    left, right, made = scales

    @tc.function
    def quantized(*at: Element) -> Computed:
        scaled = sums[at].to(f32) * (left(at).to(f32) * right(at).to(f32) / made(at).to(f32))
        return clamped(round(scaled) + zero(at).to(f32), dtype)

    return computed(sums.shape, quantized)


@operator("QuantizeLinear")
def quantize(call: Call) -> Held:
    _, scale, zero = call.tensors(3)
    x = call.images(0)
    read = elements_of(x)
    dtype = _quantized_type(call, zero)
    step, origin = _parameter(call, x, scale), _parameter(call, x, zero)
    wide = f32 if x.dtype is not scale.dtype or x.dtype.bits < 32 else x.dtype
    if call.attribute("precision", 0):
        wide = call.element_type(call.attribute("precision"))
    if dtype.is_float:
        if not call.attribute("saturate", 1):
            raise call.node.error(
                "without saturation its numbers would overflow, and taskc's saturate"
            )
        return like(
            x, dtype, tc.function(lambda *at: (read[at].to(wide) / step(at).to(wide)).to(dtype))
        )

    scaled = tc.function(lambda at: read[at].to(wide) / step(at).to(wide))
    if call.attribute("factor", 0):  # of onnx/passes/quantization_scales.py
        scaled = tc.function(lambda at: read[at].to(wide) * step(at).to(wide))
        if call.single(1) == 1:
            scaled = tc.function(lambda at: read[at].to(wide))

    @tc.function
    def quantized(*at: Element) -> Computed:
        return clamped(round(scaled(at)) + origin(at).to(wide), dtype)

    return like(x, dtype, quantized)


@operator("DequantizeLinear")
def dequantize(call: Call) -> Held:
    _, scale, zero = call.tensors(3)
    x = call.images(0)
    dtype = scale.dtype
    if call.attribute("output_dtype", 0):
        dtype = call.element_type(call.attribute("output_dtype"))
    step, origin = _parameter(call, x, scale), _parameter(call, x, zero)
    read = elements_of(x)
    if call.attribute("factor", 0) and x.dtype.bits == 8:  # of onnx/passes/quantization_scales.py
        offset = _parameter(call, x, handle_of(-call.known(1) * call.known(2).astype(np.float32)))
        return like(
            x, f32, tc.function(lambda *at: read[at].to(f32) * step(at).to(f32) + offset(at))
        )
    # Differences of 32-bit integers are exact in i32, and all others in f32.
    between = i32 if x.dtype is i32 else f32

    @tc.function
    def dequantized(*at: Element) -> Computed:
        return ((read[at].to(between) - origin(at).to(between)).to(f32) * step(at).to(f32)).to(
            dtype
        )

    return like(x, dtype, dequantized)


@operator("DynamicQuantizeLinear")
def quantize_by_range(call: Call) -> Made:
    (x,) = call.tensors(1)
    count = size(x.shape)
    row = x.reshape(count)
    largest = kernel_of(reduction, "max", (count,), (0,), dtype=f32)(row)
    smallest = kernel_of(reduction, "min", (count,), (0,), dtype=f32)(row)

    low = tc.function(lambda: min(smallest[()], 0))

    @tc.function
    def step() -> Computed:
        width = max(largest[()], 0) - low()
        return tc.where(width == 0, 1, width) / 255

    scale = computed((), step)
    zero = computed((), lambda: clamped(round(-low() / scale[()]), u8))
    y = computed(x.shape, lambda *at: clamped(round(x[at] / scale[()]) + zero[()].to(f32), u8))
    return y, scale, zero


@operator("Table", domain="taskc")
def table(call: Call) -> Held:
    """The numbers of a table at the places that bytes are, as their bits say."""
    x, numbers = call.images(0), call.given(1)
    read, listed = elements_of(x), handle_of(reshaped(numbers, size(numbers.shape)))
    return like(x, listed.dtype, tc.function(lambda *at: listed[read[at].to(i32) & 255]))


def _parameter(call: Call, x: Images, parameter: TensorHandle | None) -> Function:
    """The scale or zero point of an element of x: one for all, one for each index of an axis, or one for each block."""
    if parameter is None:
        return tc.function(lambda at: x.dtype(0))
    rank, extents = len(x.shape), parameter.shape
    if all(map(is_one, extents)):
        return tc.function(lambda at: parameter[tuple(0 for _ in range(len(extents)))])
    axis = call.axis(rank, 1)
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
    return call.element_type(number) if number else u8


# Sums of products of bytes.

_HALF = 128
_EXACT = 1 << 24  # f32 represents smaller integers exactly


def are_bytes(*tensors: Tensor) -> bool:
    return all(dtype_of(x) in (i8, u8) for x in tensors)


def exact_type(k: Extent) -> DType:
    """The type that holds the sum of k products of byte differences: f32 where that is exact, as it is faster."""
    kind: DType = f32 if isinstance(k, int) and k * 255**2 < _EXACT else i32
    return kind


def sums_of_bytes(
    a: Tensor, b: Tensor, zero_a: Tensor | None, zero_b: Tensor | None
) -> TensorHandle | None:
    """(a[..., m, k] - zero_a) @ (b[..., k, n] - zero_b) for one matrix b; None where there is no such kernel.

    zero_a  one number for all rows, or one for each;  zero_b  the same for columns
    """
    if len(a.shape) < 2 or len(b.shape) < 2 or not are_bytes(a, b):
        return None
    if not tc.machine().is_processor:
        return None
    *before, m, k = a.shape
    rows, n = prod(before) * m, b.shape[-1]
    of_a, of_b = number_of(zero_a, rows), number_of(zero_b, n)
    sizes = rows, n, k, size(b.shape)
    if (
        of_a is None
        or of_b is None
        or not all(isinstance(extent, int) and extent for extent in sizes)
    ):
        return None
    if size(b.shape) != k * n:
        return None
    left = reshaped(handle_of(a), rows, k)
    right, less = signed(reshaped(b, k, n))
    is_packed = isinstance(right, np.ndarray)
    kernel = kernel_of(product, rows, n, k, dtype=left.dtype, right=i8, total=i32, packed=is_packed)
    sums = kernel(left, right)
    less_b = tc.function(lambda j: of_b(j) - less)
    if not is_zero(zero_a):
        sums = _less(sums, summed(right, 0), of_a, k, less_b)
    if less or not is_zero(zero_b):
        rows_of_left, plain = summed(left, 1), sums
        sums = computed(plain.shape, lambda i, j: plain[i, j] - less_b(j) * rows_of_left[i])
    return reshaped(sums, *before, m, n)


def _less(
    sums: TensorHandle, columns: TensorHandle, of_a: Function, k: Extent, of_b: Function
) -> TensorHandle:
    return computed(sums.shape, lambda i, j: sums[i, j] - of_a(i) * (columns[j] - k * of_b(j)))


def signed(b: Tensor) -> tuple[Tensor, int]:
    """Bytes as signed ones, and the number that was subtracted from them."""
    if dtype_of(b) is i8:
        return b, 0
    if isinstance(b, np.ndarray):
        return constant_of(b, _halved, i8), _HALF
    return computed(b.shape, lambda *at: _halved(b[at])), _HALF


@tc.function
def _halved(byte: Element) -> Computed:
    return (byte.to(i32) - _HALF).to(i8)


def summed(x: Tensor, axis: int) -> TensorHandle:
    """The sums of a matrix of bytes along an axis; those of a constant are computed now."""
    if isinstance(x, np.ndarray):
        return handle_of(x.sum(axis, dtype=np.int32))
    wide = computed(x.shape, lambda i, j: x[i, j].to(i32))
    return kernel_of(reduction, "sum", x.shape, (axis,), dtype=i32)(wide)


def number_of(zero: Tensor | None, count: Extent) -> Function | None:
    """A zero point as i32: one for all, or one for each of `count`; None for any other number of them."""
    if zero is None:
        return tc.function(lambda place: i32(0))
    numbers = size(zero.shape)
    if numbers not in (1, count):
        return None
    line = reshaped(handle_of(zero), numbers)
    is_alone = numbers == 1
    return tc.function(lambda place: line[0 if is_alone else place].to(i32))


def is_zero(zero: Tensor | None) -> bool:
    """Whether a zero point is known to be 0."""
    return zero is None or (isinstance(zero, np.ndarray) and not any(zero.reshape(-1).tolist()))
