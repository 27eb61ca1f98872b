"""Convolutions: Conv, ConvTranspose and the parts shared with quantized convolutions.

Images are NCHW. Constant filters are packed once.

Quantized convolutions: ConvInteger and QLinearConv.

Bytes are multiplied directly where filters can be signed with a zero point of 0, which the instructions require. A zero
point of the images then changes all sums of a feature by the same amount, provided that no window crosses an edge; if
one does, images are padded with the zero point first. Everything else is shifted before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

import numpy as np

import taskc as tc
from taskc import f32, i8, i32
from taskc.kernels.convolution import convolution_of, is_widened
from taskc.kernels.convolution.plan_packs import multiplies_bytes
from taskc.kernels.signatures import wide
from taskc.kernels.windows import Windows
from taskc.operators.call import Call, Made, operator
from taskc.operators.graph import Array
from taskc.operators.movement import padded
from taskc.operators.operands import (
    as_it_is,
    constant_of,
    converted,
    converted_for_all,
    is_one,
    kernel_of,
    widened,
)
from taskc.operators.products import shifted
from taskc.operators.quantization import (
    are_bytes,
    exact_type,
    is_zero,
    number_of,
    requantized,
    signed,
    summed,
)
from taskc.operators.tensors import (
    Blocked,
    Extent,
    Function,
    Held,
    Images,
    Shape,
    Tensor,
    can_be_blocked,
    computed,
    elements_of,
    handle_of,
    like,
    reshaped,
    rows_of,
)
from taskc.operators.windows import halves, numbers, spatial, windows_of
from taskc.programs.tracing import Computed, Element, TensorHandle


@operator("Conv")
def conv(call: Call) -> Held:
    call.require_kernel()
    x, w = call.images(0), call.given(1)
    windows = windows_of(call, spatial(call, x.shape), taps_of(call, w))
    return _in_layout(call, x, w, call.optional(2), windows)


def _in_layout(
    call: Call, x: Images, w: Tensor, b: Tensor | None, windows: Windows, **options: object
) -> Images:
    """The convolution, with results in the layout that the node wants, where images of this shape can have it."""
    is_blocked = call.attribute("results", "NCHW") == "NCHWc" or are_bytes(
        handle_of(elements_of(x))
    )
    if can_be_blocked(x.shape) and is_blocked:
        features = _features(call, w, bool(options.get("transposed")))
        return Blocked(convolved(call, x, w, b, windows, results="NCHWc", **options), features)
    return convolved_rows(call, x, w, b, windows, **options)


def _features(call: Call, w: Tensor, is_transposed: bool) -> Extent:
    """The number of features: filters of transposed convolutions have those of one group along their second axis."""
    return w.shape[1] * call.attribute("group", 1) if is_transposed else w.shape[0]


@operator("Blocks", domain="taskc")
def blocks(call: Call) -> Held:
    """Images in blocked layout, where their shape allows it."""
    x = call.images(0)
    if isinstance(x, Blocked) or not (can_be_blocked(x.shape) and x.dtype.is_float):
        return x
    return Blocked.empty(x.shape, x.dtype).computed("blocks", tc.function(lambda *at: x[at]))


@operator("Folded", domain="taskc")
def folded_filters(call: Call) -> Made:
    """Filters and bias of a convolution with the following batch norm folded in."""
    w, b, scale, shift, mean, variance = call.tensors(6)
    epsilon, total = call.attribute("epsilon"), wide(w.dtype)

    @tc.function
    def factor(feature: Element) -> Computed:
        return scale[feature].to(total) / tc.sqrt(variance[feature].to(total) + epsilon)

    @tc.function
    def offset(feature: Element) -> Computed:
        before = 0 if b is None else b[feature].to(total)
        return (before - mean[feature].to(total)) * factor(feature) + shift[feature].to(total)

    filters = computed(w.shape, lambda *at: (w[at].to(total) * factor(at[0])).to(w.dtype))
    return filters, computed((w.shape[0],), lambda feature: offset(feature).to(w.dtype))


def convolved_rows(
    call: Call, x: Images, w: Tensor, b: Tensor | None, windows: Windows, **options: object
) -> TensorHandle:
    """The convolution by windows; one whose windows and images have a single column is computed on lines."""
    is_of_lines = windows.is_of_columns and not options.get("transposed", False)
    if is_of_lines and is_one(x.shape[-1]) and not isinstance(x, Blocked):
        # Images of one column are convolved as lines: tiles are along lines, and a column has lines of one element.
        line, filters = reshaped(x, *x.shape[:3]), reshaped(w, *w.shape[:3])
        results = convolved(call, line, filters, b, windows.along(0))
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
    call: Call, x: Images, w: Tensor, b: Tensor | None, windows: Windows, **options: object
) -> TensorHandle:
    """The convolution of images with filters, by the library's kernel for this number of spatial axes."""
    if is_widened(x.dtype, tc.machine()):
        options = {"result": x.dtype, **options}
        x, w = _widened_images(x), _widened_filters(w)
    images, channels, *extents = x.shape
    groups = call.attribute("group", 1)
    is_transposed = bool(options.get("transposed"))
    features = _features(call, w, is_transposed)
    if w.shape[0 if is_transposed else 1] * (1 if is_transposed else groups) != channels:
        raise call.node.error(f"its filters are {list(w.shape)}, and x has {channels} channels")
    options = {"exact": bool(call.attribute("exact", 0)), **options}
    if isinstance(w, np.ndarray) and not (options["exact"] or is_transposed):
        w, groups = _with_whole_vectors(w, groups, tc.machine().lanes)
    if len(extents) == 3 and not tc.machine().is_processor:
        assert not isinstance(x, Blocked)
        return _by_slices(call, x, w, b, windows)
    kernel = kernel_of(
        convolution_of, images, tuple(extents), channels, features,
        groups=groups, filters="IOHW" if is_transposed else "OIHW", dtype=x.dtype,
        order="NCHWc" if isinstance(x, Blocked) else "NCHW", is_constant=isinstance(w, np.ndarray),
        bias=b is not None, **windows.options,
        **{"results": "NCHW", **options},
    )  # fmt: skip
    return kernel(elements_of(x), w, *(() if b is None else (widened(b, x.dtype),)))


# Where vectors begin inside of a group, they pick a channel for each lane, which takes as long as so many products.
_MOST_MERGED = 8


def _with_whole_vectors(w: Array, groups: int, lanes: int) -> tuple[Array, int]:
    """Filters and the number of groups, with groups merged until none begins inside of a vector of features. A merged
    group's filters are zero at the channels of the others."""
    features, channels = w.shape[0] // groups, w.shape[1]
    merged = lanes // gcd(features, lanes)
    if groups % merged:
        merged = groups
    is_even = features < lanes and lanes % features == 0
    if is_even or channels == 1 or w.dtype.kind != "f" or not 1 < merged <= _MOST_MERGED:
        return w, groups
    wider = np.zeros((groups // merged, merged, features, merged, *w.shape[1:]), w.dtype)
    for n in range(merged):
        wider[:, n, :, n] = w.reshape(groups // merged, merged, features, *w.shape[1:])[:, n]
    return wider.reshape(w.shape[0], merged * channels, *w.shape[2:]), groups // merged


def _by_slices(
    call: Call, x: TensorHandle, w: Tensor, b: Tensor | None, windows: Windows
) -> TensorHandle:
    """A 3-D convolution in two dimensions: an image for each output slice, with the channels of all slices it reads."""
    images, channels, depth, height, width = x.shape
    deep, *size = windows.size
    (slices,) = windows.along(0).counts((depth,))

    @tc.function
    def number(image: Element, c: Element, i: Element, j: Element) -> Computed:
        at = image % slices * windows.stride[0] + c % deep * windows.dilation[0] - windows.before[0]
        return x[image // slices, c // deep, at, i, j] if 0 <= at < depth else 0

    flat = computed((images * slices, channels * deep, height, width), number)
    filters = reshaped(w, w.shape[0], w.shape[1] * deep, *size)
    made = convolved(call, flat, filters, b, windows.along(1, 2))
    _, features, rows, columns = made.shape
    shape = images, features, slices, rows, columns
    return computed(shape, lambda n, f, d, i, j: made[n * slices + d, f, i, j])


def _widened_images(x: Images) -> Images:
    """Images of 16-bit numbers converted to f32."""
    if not isinstance(x, Blocked):
        return converted_for_all(x, f32)
    read = x.handle
    return like(x, f32, tc.function(lambda *at: read[at].to(f32)))


def _widened_filters(w: Tensor) -> Tensor:
    return constant_of(w, as_it_is, f32) if isinstance(w, np.ndarray) else converted(w, f32)


@operator("ConvTranspose")
def conv_transpose(call: Call) -> Held:
    call.require_kernel()
    images, w, b = call.images(0), call.given(1), call.optional(2)
    extents = spatial(call, images.shape)
    windows, results = _transposed_windows(call, extents, taps_of(call, w))
    if not tc.machine().is_processor:
        return _spread_out(call, rows_of(images), handle_of(w), b, windows, results)
    added = [made - least for made, least in zip(results, windows.extents(extents), strict=True)]
    more = tuple(added)
    return _in_layout(call, images, w, b, windows, transposed=True, output_padding=more)


def _transposed_windows(
    call: Call, extents: Shape, size: tuple[int, ...]
) -> tuple[Windows, list[Extent]]:
    """The windows, and the number of results along each axis; padding crops the results."""
    rank, automatic = len(extents), call.attribute("auto_pad", "NOTSET")
    if not all(isinstance(extent, int) for extent in extents):
        raise call.node.error("its images have extents that are known only when it runs")
    if len(size) != rank:
        raise call.node.error(f"its windows are of {len(size)} axes, and its images of {rank}")
    added = numbers(call, "output_padding", rank, 0)
    declared = call.attribute("output_shape")
    stride, dilation = numbers(call, "strides", rank, 1), numbers(call, "dilations", rank, 1)
    if declared is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        declared = [extent * step for extent, step in zip(extents, stride, strict=True)]
    if declared is None:
        windows = windows_of(call, extents, size)
        return windows, _with_added(windows.extents(extents), added)
    results = list(declared)[-rank:]
    uncut = Windows(size, stride, dilation, (0,) * rank, (0,) * rank)
    whole = _with_added(uncut.extents(extents), added)
    cuts = [max(0, full - made) for full, made in zip(whole, results, strict=True)]
    sides = [halves(cut, automatic != "SAME_UPPER") for cut in cuts]
    before, behind = (tuple(side[n] for side in sides) for n in (0, 1))
    return replace(uncut, before=before, behind=behind), results


def _with_added(extents: Shape, added: Sequence[int]) -> list[Extent]:
    return [extent + more for extent, more in zip(extents, added, strict=True)]


def _spread_out(
    call: Call,
    x: TensorHandle,
    w: TensorHandle,
    b: Tensor | None,
    windows: Windows,
    results: list[Extent],
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
    def number(n: Element, c: Element, *at: Element) -> Computed:
        place = tuple(at[d] - first[d] for d in axes)
        is_one = all(
            place[d] >= 0 and place[d] % stride[d] == 0 and place[d] // stride[d] < extents[d]
            for d in axes
        )
        whole = (n, c, *(place[d] // stride[d] for d in axes))
        return x[whole] if is_one else 0

    @tc.function
    def turned(f: Element, c: Element, *at: Element) -> Computed:
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
    return _corrected(*_sums(call, 0, 1, 2, 3))


@operator("ScaledSums", domain="taskc")
def scaled_sums(call: Call) -> Held:
    """A convolution of bytes as ConvInteger, times the scales of images and filters, plus a bias."""
    call.require_kernel()
    of_x, of_w, bias = call.known(4), call.known(5), call.optional(6)
    sums, less = _sums(call, 0, 1, 2, 3)
    scales = of_x * of_w
    offset = None if bias is None else _of_feature(handle_of(bias))
    if isinstance(less, np.ndarray) and isinstance(bias, np.ndarray | None) and _are_short(call):
        # The part of the zero point is a part of the bias: a fused multiply-add is all that is left.
        before = 0 if bias is None else bias
        offset = _of_feature(handle_of((before - scales * less).astype(np.float32)))
    elif less is not None:
        sums = _corrected(sums, less)
    read, scale = elements_of(sums), _of_feature(handle_of(scales))
    if offset is None:
        return like(sums, f32, tc.function(lambda *at: read[at].to(f32) * scale(at)))
    return like(sums, f32, tc.function(lambda *at: read[at].to(f32) * scale(at) + offset(at)))


def _are_short(call: Call) -> bool:
    """Whether f32 holds all sums of bytes by these filters exactly."""
    w = call.known(1)
    sums = np.abs(w.reshape(len(w), -1).astype(np.int64)).sum(1) * 255
    return bool(sums.max(initial=0) < 1 << 24)


@operator("QLinearConv")
def quantized_conv(call: Call) -> Tensor:
    _, of_x, _, _, of_w, _, of_y, zero_y, b = call.tensors(9)
    sums = rows_of(_corrected(*_sums(call, 0, 3, 2, 5)))
    if b is not None:
        products = sums
        sums = computed(products.shape, lambda *at: products[at] + b[at[1]])
    scales = _of_feature(of_x), _of_feature(of_w), _of_feature(of_y)
    return requantized(sums, scales, _of_feature(zero_y), zero_y.dtype)


def _corrected(sums: Images, less: Tensor | None) -> Images:
    """Sums less a number for each feature, as i32."""
    read = elements_of(sums)
    if less is not None:
        listed = handle_of(less)
        return like(sums, i32, tc.function(lambda *at: read[at].to(i32) - listed[at[1]]))
    if sums.dtype is i32:
        return sums
    return like(sums, i32, tc.function(lambda *at: read[at].to(i32)))


def _sums(call: Call, *places: int) -> tuple[Images, Tensor | None]:
    """The convolution of images and filters less their zero points; arguments are positions of inputs.

    A number for each feature is yet to be subtracted from the sums, which are i32 or exact floats, unless it is None.
    """
    x, w, zero_x, zero_w = map(call.optional, places)
    assert x is not None
    assert w is not None
    windows = windows_of(call, spatial(call, x.shape), taps_of(call, w))
    if isinstance(w, np.ndarray) and w.size and are_bytes(x, w) and is_one_number(zero_x):
        filters, less = signed(w)
        if _are_all(zero_w, less):
            images = call.images(places[0])
            return _by_packs(call, images, filters, zero_x, windows)
    between = exact_type(prod(w.shape[1:]))
    images = _less_zero_point(handle_of(x), zero_x, between)
    filters = _less_zero_point(handle_of(w), zero_w, between)
    return convolved_rows(call, images, filters, None, windows, exact=True), None


def _by_packs(
    call: Call, x: Images, w: Tensor, zero: Tensor | None, windows: Windows
) -> tuple[Images, Tensor | None]:
    of_x = number_of(zero, 1)
    assert of_x is not None
    around, is_plain = 0, call.attribute("group", 1) == 1
    if not is_zero(zero) and any(windows.padding):
        is_depthwise = is_one(w.shape[1]) and call.attribute("group", 1) == w.shape[0]
        has_plans = multiplies_bytes(tc.machine()) if is_plain else is_depthwise
        if isinstance(zero, np.ndarray) and has_plans and can_be_blocked(x.shape):
            around = int(zero.reshape(()))
        else:
            x, windows = _padded(rows_of(x), of_x, windows)
    # A depthwise convolution sums few products: f32 holds them exactly, and multiplies faster.
    total = i32 if is_plain else exact_type(prod(w.shape[1:]))
    options = {"right": i8, "total": total, "result": total, "around": around}
    sums = _in_layout(call, x, w, None, windows, **options)
    if is_zero(zero):
        return sums, None
    return sums, _products_of_zero(zero, of_x, reshaped(w, w.shape[0], prod(w.shape[1:])))


def _products_of_zero(zero: Tensor | None, of_x: Function, w: Tensor) -> Tensor:
    """The zero point times the sum of each filter; of constants it is one."""
    if isinstance(zero, np.ndarray) and isinstance(w, np.ndarray):
        products: Array = w.sum(1, dtype=np.int32) * zero.astype(np.int32).reshape(())
        return products
    of_w = summed(w, 1)
    return computed(of_w.shape, lambda feature: of_x(0) * of_w[feature])


def _padded(x: TensorHandle, zero: Function, windows: Windows) -> tuple[TensorHandle, Windows]:
    """Images padded with their zero point, and windows without padding."""
    before, behind = (0, 0, *windows.before), (0, 0, *windows.behind)
    images = padded(x, before, behind, tc.function(lambda: zero(0).to(x.dtype)), "padded")
    none = (0,) * len(windows.before)
    return images, replace(windows, before=none, behind=none)


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


def _of_feature(x: TensorHandle) -> Function:
    """The scale or zero point of a result, as a function of its indices."""
    number = _number(x)
    return tc.function(lambda at: number(at[1]))


def _number(x: TensorHandle) -> Function:
    """A scale or zero point as a function of the feature: one for all, or one for each."""
    if len(x.shape) == 0:
        return tc.function(lambda feature: x[()])
    is_alone = is_one(x.shape[0])
    return tc.function(lambda feature: x[0 if is_alone else feature])
