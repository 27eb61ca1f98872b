"""Convolutions: Conv, ConvTranspose and the parts shared with quantized convolutions.

Images are NCHW. Constant filters are packed once.

Quantized convolutions: ConvInteger and QLinearConv.

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
from taskc.kernels.convolution import convolution, convolution_1d, convolution_3d
from taskc.kernels.signatures import wide
from taskc.operators.blocked import Blocked, can_be_blocked, elements_of, like
from taskc.operators.call import Call, Held, Made, Tensor, handle_of, operator, rows_of
from taskc.operators.integers import are_bytes, exact_type, is_zero, number_of, signed, summed
from taskc.operators.operands import (
    as_it_is,
    computed,
    constant_of,
    converted,
    converted_for_all,
    is_one,
    reshaped,
    template,
    tensors,
    widened,
)
from taskc.operators.products import shifted
from taskc.operators.quantization import requantized
from taskc.operators.windows import Windows, halves, numbers, spatial, windows_of
from taskc.programs.tracing import TensorHandle

_TEMPLATES = {1: template(convolution_1d), 2: template(convolution), 3: template(convolution_3d)}


@operator("Conv")
def conv(call: Call) -> Held:
    call.require_kernel()
    if not can_be_blocked(call.shape(0)):
        return _convolved(call, call.tensor(0), call.given(1), _bias(call))
    x, results = call.images(0), call.attribute("results", "NCHW")
    is_blocked = isinstance(x, Blocked)
    images = _convolved(
        call,
        x,
        call.given(1),
        _bias(call),
        order="NCHWc" if is_blocked else "NCHW",
        results=results,
    )
    return Blocked(images, call.shape(1)[0]) if results == "NCHWc" else images


@operator("Blocks", domain="taskc")
def blocks(call: Call) -> Held:
    """Images in blocked layout, where their shape allows it."""
    x = call.given(0)
    if not can_be_blocked(x.shape) or not call.dtype(0).is_float or not isinstance(x, TensorHandle):
        return x
    return Blocked.empty(x.shape, x.dtype).computed("blocks", tc.function(lambda *at: x[at]))


@operator("Folded", domain="taskc")
def folded(call: Call) -> Made:
    """Filters and bias of a convolution with the following batch norm folded in."""
    w, b, scale, shift, mean, variance = tensors(call, 6)
    epsilon, total = call.attribute("epsilon"), wide(w.dtype)

    @tc.function
    def factor(feature):
        return scale[feature].to(total) / tc.sqrt(variance[feature].to(total) + epsilon)

    @tc.function
    def offset(feature):
        before = 0 if b is None else b[feature].to(total)
        return (before - mean[feature].to(total)) * factor(feature) + shift[feature].to(total)

    filters = computed(w.shape, lambda *at: (w[at].to(total) * factor(at[0])).to(w.dtype))
    return filters, computed((w.shape[0],), lambda feature: offset(feature).to(w.dtype))


def _bias(call: Call) -> Tensor | None:
    return call.given(2) if call.has(2) else None


def _convolved(
    call: Call, x: TensorHandle | Blocked, w: Tensor, b: Tensor | None, **options: Any
) -> TensorHandle:
    windows = windows_of(call, spatial(call, x.shape), taps_of(call, w))
    return convolved_rows(call, x, w, b, windows, **options)


def convolved_rows(
    call: Call,
    x: TensorHandle | Blocked,
    w: Tensor,
    b: Tensor | None,
    windows: Windows,
    **options: Any,
) -> TensorHandle:
    """The convolution by windows; one whose windows and images have a single column is computed on lines."""
    is_of_columns = windows.is_of_columns and is_one(x.shape[-1])
    if is_of_columns and not isinstance(x, Blocked) and options.get("results") != "NCHWc":
        # Images of one column are convolved as lines: tiles are along lines, and a column has lines of one element.
        line, filters = reshaped(x, *x.shape[:3]), reshaped(w, *w.shape[:3])
        results = convolved(call, line, filters, b, windows.first)
        return reshaped(results, *results.shape, 1)
    return convolved(call, x, w, b, windows, **options)


def taps_of(call: Call, w: Tensor) -> tuple[int, ...]:
    """The spatial extents of filters, checked against the node's kernel_shape."""
    size = tuple(w.shape[2:])
    declared = call.attribute("kernel_shape")
    if declared is not None and tuple(declared) != size:
        raise call.node.error(f"its kernel_shape is {declared}, and its filters have {list(size)}")
    return size


def convolved(
    call: Call,
    x: TensorHandle | Blocked,
    w: Tensor,
    b: Tensor | None,
    windows: Windows,
    **options: Any,
) -> TensorHandle:
    """The convolution of images with filters, by the library's kernel for this number of spatial axes."""
    if wide(x.dtype) is not x.dtype and not tc.machine().instructions(x.dtype, x.dtype, f32):
        # Otherwise each tap would widen its number again.
        options = {"result": x.dtype, **options}
        x, w = _widened_images(x), _widened_filters(w)
    images, channels, *extents = x.shape
    groups = call.attribute("group", 1)
    is_transposed = options.get("transposed", False)
    features = w.shape[1] * groups if is_transposed else w.shape[0]
    if w.shape[0 if is_transposed else 1] * (1 if is_transposed else groups) != channels:
        raise call.node.error(f"its filters are {list(w.shape)}, and x has {channels} channels")
    is_packed = isinstance(w, np.ndarray) and tc.machine().is_processor
    rank = len(extents)
    if rank == 3 and not tc.machine().is_processor:
        assert not isinstance(x, Blocked)
        return _by_slices(call, x, w, b, windows)
    alone = rank == 1
    kernel = _TEMPLATES[rank](
        images, *extents, channels, features,
        size=windows.size[0] if alone else windows.size,
        stride=windows.stride[0] if alone else windows.stride,
        dilation=windows.dilation[0] if alone else windows.dilation,
        padding=windows.padding, groups=groups,
        filters="IOHW" if is_transposed else "OIHW",
        packed=is_packed, bias=b is not None, dtype=x.dtype,
        **{"order": "NCHW", "exact": bool(call.attribute("exact", 0)), **options},
    )  # fmt: skip
    images_or_blocks = x.handle if isinstance(x, Blocked) else x
    results: TensorHandle = (
        kernel(images_or_blocks, w)
        if b is None
        else kernel(images_or_blocks, w, widened(b, x.dtype))
    )
    return results


def _by_slices(
    call: Call, x: TensorHandle, w: Tensor, b: Tensor | None, windows: Windows
) -> TensorHandle:
    """A 3-D convolution in two dimensions: an image for each output slice, with the channels of all slices it reads."""
    images, channels, depth, height, width = x.shape
    deep, *size = windows.size
    slices = (depth + windows.before[0] + windows.behind[0] - windows.covered[0]) // windows.stride[
        0
    ] + 1

    @tc.function
    def number(image, c, i, j):
        at = image % slices * windows.stride[0] + c % deep * windows.dilation[0] - windows.before[0]
        return x[image // slices, c // deep, at, i, j] if 0 <= at < depth else 0

    flat = computed((images * slices, channels * deep, height, width), number)
    filters = reshaped(w, w.shape[0], w.shape[1] * deep, *size)
    parts = windows.size, windows.stride, windows.dilation, windows.before, windows.behind
    made = convolved(call, flat, filters, b, Windows(*[part[1:] for part in parts]))
    _, features, rows, columns = made.shape
    shape = images, features, slices, rows, columns
    return computed(shape, lambda n, f, d, i, j: made[n * slices + d, f, i, j])


def _widened_images(x: TensorHandle | Blocked) -> TensorHandle | Blocked:
    """Images of 16-bit numbers converted to f32."""
    if not isinstance(x, Blocked):
        return converted_for_all(x, f32)
    read = x.handle
    return like(x, f32, tc.function(lambda *at: read[at].to(f32)))


def _widened_filters(w: Tensor) -> Tensor:
    return constant_of(w, as_it_is, f32) if isinstance(w, np.ndarray) else converted(w, f32)


@operator("ConvTranspose")
def conv_transpose(call: Call) -> Tensor:
    call.require_kernel()
    images, w, b = call.tensor(0), call.given(1), _bias(call)
    extents = spatial(call, images.shape)
    windows, results = _transposed_windows(call, extents, taps_of(call, w))
    if not tc.machine().is_processor:
        return _spread_out(call, images, handle_of(w), b, windows, results)
    axes = zip(
        results,
        extents,
        windows.stride,
        windows.covered,
        windows.before,
        windows.behind,
        strict=True,
    )
    added = [
        result - ((extent - 1) * stride + covered - before - behind)
        for result, extent, stride, covered, before, behind in axes
    ]
    padding = added[0] if len(added) == 1 else tuple(added)
    return convolved(call, images, w, b, windows, transposed=True, output_padding=padding)


def _transposed_windows(
    call: Call, extents: tuple[Any, ...], size: tuple[int, ...]
) -> tuple[Windows, list[int]]:
    """The windows, and the number of results along each axis; padding crops the results."""
    rank, automatic = len(extents), call.attribute("auto_pad", "NOTSET")
    if not all(isinstance(extent, int) for extent in extents):
        raise call.node.error("its images have extents that are known only when it runs")
    if len(size) != rank:
        raise call.node.error(f"its windows are of {len(size)} axes, and its images of {rank}")
    added = numbers(call, "output_padding", rank, 0)
    declared = call.attribute("output_shape")
    stride, dilation = numbers(call, "strides", rank, 1), numbers(call, "dilations", rank, 1)
    covered = [(n - 1) * d + 1 for n, d in zip(size, dilation, strict=True)]
    whole = [
        (n - 1) * s + c + m for n, s, c, m in zip(extents, stride, covered, added, strict=True)
    ]
    if declared is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        declared = [extent * step for extent, step in zip(extents, stride, strict=True)]
    if declared is None:
        windows = windows_of(call, extents, size)
        cut = zip(whole, windows.before, windows.behind, strict=True)
        return windows, [extent - before - behind for extent, before, behind in cut]
    results = list(declared)[-rank:]
    cuts = [max(0, full - made) for full, made in zip(whole, results, strict=True)]
    sides = [halves(cut, automatic != "SAME_UPPER") for cut in cuts]
    before, behind = (tuple(side[n] for side in sides) for n in (0, 1))
    return Windows(size, stride, dilation, before, behind), results


def _spread_out(
    call: Call,
    x: TensorHandle,
    w: TensorHandle,
    b: Tensor | None,
    windows: Windows,
    results: list[int],
) -> TensorHandle:
    """A transposed convolution as a convolution with flipped filters, of images with zeros between their elements."""
    images, channels, *extents = x.shape
    groups = call.attribute("group", 1)
    inside, features = channels // groups, w.shape[1]
    axes, size, stride = range(len(extents)), windows.size, windows.stride
    first = [
        covered - 1 - cut for covered, cut in zip(windows.covered, windows.before, strict=True)
    ]
    spread = [made + covered - 1 for made, covered in zip(results, windows.covered, strict=True)]

    @tc.function
    def number(n, c, *at):
        place = tuple(at[d] - first[d] for d in axes)
        is_one = all(
            place[d] >= 0 and place[d] % stride[d] == 0 and place[d] // stride[d] < extents[d]
            for d in axes
        )
        whole = (n, c, *(place[d] // stride[d] for d in axes))
        return x[whole] if is_one else 0

    @tc.function
    def turned(f, c, *at):
        opposite = tuple(size[d] - 1 - at[d] for d in axes)
        place = (f // features * inside + c, f % features, *opposite)
        return w[place]

    apart = computed((images, channels, *spread), number)
    filters = computed((groups * features, inside, *size), turned)
    none = (0,) * len(size)
    plain = Windows(size, (1,) * len(size), windows.dilation, none, none)
    return convolved(call, apart, filters, b, plain)


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
