"""Quantized convolutions: ConvInteger and QLinearConv.

Bytes are multiplied directly where filters can be signed with a zero point of 0, which the instructions require. A zero
point of the images then changes all sums of a feature by the same amount, provided that no window crosses an edge; if
one does, images are padded with the zero point first. Everything else is shifted before it is multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, i8, i32
from taskc.lang.tracing import TensorHandle
from taskc.operators.blocked import Blocked, can_be_blocked, elements_of, like
from taskc.operators.call import Call, Held, Tensor, handle_of, operator, rows_of
from taskc.operators.convolutions import convolved_rows, taps_of
from taskc.operators.integers import are_bytes, exact_type, is_zero, number_of, signed, summed
from taskc.operators.operands import computed, converted, is_one, reshaped, tensors
from taskc.operators.products import shifted
from taskc.operators.quantization import requantized
from taskc.operators.windows import Windows, spatial, windows_of


@operator("ConvInteger")
def conv_integer(call: Call) -> Held:
    call.require_kernel()
    return _sums(call, 0, 1, 2, 3)


@operator("ScaledSums", domain="taskc")
def scaled_sums(call: Call) -> Held:
    """Sums of products of bytes times the scales of images and filters, plus a bias."""
    _, of_x, of_w, bias = tensors(call, 4)
    sums = call.images(0)
    read, left, right = elements_of(sums), _of_feature(of_x), _of_feature(of_w)

    @tc.function
    def scaled(at):
        return read[at].to(f32) * (left(at) * right(at))

    if bias is None:
        return like(sums, f32, tc.function(lambda *at: scaled(at)))
    return like(sums, f32, tc.function(lambda *at: scaled(at) + bias[at[1]]))


@operator("QLinearConv")
def quantized_conv(call: Call) -> Tensor:
    _, of_x, _, _, of_w, _, of_y, zero_y, b = tensors(call, 9)
    sums = rows_of(_sums(call, 0, 3, 2, 5))
    assert isinstance(sums, TensorHandle)
    if b is not None:
        products = sums
        sums = computed(products.shape, lambda *at: products[at] + b[at[1]])
    scales = _of_feature(of_x), _of_feature(of_w), _of_feature(of_y)
    return requantized(sums, scales, _of_feature(zero_y), zero_y.dtype)


def _sums(call: Call, *places: int) -> TensorHandle | Blocked:
    """The convolution, as i32, of images and filters less their zero points; arguments are positions of inputs."""
    x, w, zero_x, zero_w = (call.given(place) if call.has(place) else None for place in places)
    assert x is not None
    assert w is not None
    windows = windows_of(call, spatial(call, x.shape), taps_of(call, w))
    if isinstance(w, np.ndarray) and w.size and are_bytes(x, w) and is_one_number(zero_x):
        filters, less = signed(w)
        if _are_all(zero_w, less):
            images = call.images(places[0])
            return _by_packs(call, images, filters, zero_x, windows)
    between = exact_type(prod(w.shape[1:]))
    images, filters = (
        _less_zero_point(handle_of(x), zero_x, between),
        _less_zero_point(handle_of(w), zero_w, between),
    )
    return converted(convolved_rows(call, images, filters, None, windows, exact=True), i32)


def _by_packs(
    call: Call, x: TensorHandle | Blocked, w: Tensor, zero: Tensor | None, windows: Windows
) -> TensorHandle | Blocked:
    assert isinstance(w, np.ndarray)
    if not is_zero(zero) and any(windows.padding):
        rows = rows_of(x)
        assert isinstance(rows, TensorHandle)
        x, windows = _padded(rows, zero, windows)
    # A depthwise convolution sums few products: f32 holds them exactly, and multiplies faster.
    total = i32 if call.attribute("group", 1) == 1 else exact_type(prod(w.shape[1:]))
    options: dict[str, Any] = {"right": i8, "total": total, "result": total}
    made: TensorHandle | Blocked
    if can_be_blocked(x.shape):
        options |= {"order": "NCHWc" if isinstance(x, Blocked) else "NCHW"}
        options |= {"results": call.attribute("results", "NCHW")}
    made = convolved_rows(call, x, w, None, windows, **options)
    if options.get("results") == "NCHWc":
        made = Blocked(made, w.shape[0])
    read = elements_of(made)
    if is_zero(zero):
        return (
            made
            if made.dtype is i32
            else like(made, i32, tc.function(lambda *at: read[at].to(i32)))
        )
    of_x, of_filters = number_of(zero, 1), summed(reshaped(w, w.shape[0], prod(w.shape[1:])), 1)
    assert of_x is not None
    return like(made, i32, tc.function(lambda *at: read[at].to(i32) - of_x(0) * of_filters[at[1]]))


def _padded(x: TensorHandle, zero: Tensor | None, windows: Windows) -> tuple[TensorHandle, Windows]:
    """Images padded with their zero point, and windows without padding."""
    images, channels, *extents = x.shape
    before, nothing = windows.before, (0,) * len(extents)
    sides = zip(extents, windows.before, windows.behind, strict=True)
    shape = [first + extent + last for extent, first, last in sides]
    around, axes = number_of(zero, 1), range(len(extents))
    assert around is not None

    @tc.function
    def number(n, c, *at):
        place = tuple(at[d] - before[d] for d in axes)
        is_inside = all(place[d] >= 0 and place[d] < extents[d] for d in axes)
        whole = (n, c, *place)
        return x[whole] if is_inside else around(0).to(x.dtype)

    return computed((images, channels, *shape), number), replace(
        windows, before=nothing, behind=nothing
    )


def is_one_number(zero: Tensor | None) -> bool:
    return zero is None or all(map(is_one, zero.shape))


def _are_all(zero: Tensor | None, number: int) -> bool:
    """Whether all zero points are known to equal a number."""
    if zero is None:
        return number == 0
    return isinstance(zero, np.ndarray) and {*zero.reshape(-1).tolist()} == {number}


def _less_zero_point(x: TensorHandle, zero: Tensor | None, dtype: tc.DType) -> TensorHandle:
    """Quantized images or filters less their zero point; each filter may have its own."""
    if zero is None:
        return shifted(x, None, dtype)
    number = _number(handle_of(zero))
    return shifted(x, tc.function(lambda at: number(at[0])), dtype)


def _of_feature(x: TensorHandle) -> Any:
    """The scale or zero point of a result, as a function of its indices."""
    number = _number(x)
    return tc.function(lambda at: number(at[1]))


def _number(x: TensorHandle) -> Any:
    """A scale or zero point as a function of the feature: one for all, or one for each."""
    if len(x.shape) == 0:
        return tc.function(lambda feature: x[()])
    is_alone = is_one(x.shape[0])
    return tc.function(lambda feature: x[0 if is_alone else feature])
