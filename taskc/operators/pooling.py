"""MaxPool, AveragePool and LpPool, and their global variants."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import taskc as tc
from taskc import DType, i64, spatial as lanes
from taskc.kernels.pooling import (
    average_pool,
    global_average_pool,
    global_max_pool,
    max_pool,
    sum_pool,
)
from taskc.kernels.reductions import reduction
from taskc.kernels.signatures import wide
from taskc.operators.blocked import Blocked
from taskc.operators.call import Call, Held, Made, Tensor, at_least, operator
from taskc.operators.operands import computed, reshaped, size, template, tensors, wants
from taskc.operators.windows import Windows, spatial, windows_of
from taskc.programs.tracing import TensorHandle

_max_pool, _sum_pool = template(max_pool), template(sum_pool)
_average_pool = template(average_pool)
_reduction = template(reduction)
_global_pools = {"max": template(global_max_pool), "mean": template(global_average_pool)}


@operator("MaxPool")
def largest(call: Call) -> Made:
    if isinstance(call.images(0), Blocked) and not wants(call, 1):
        return _pooled_blocks(call, _max_pool)
    (x,) = tensors(call, 1)
    windows = _windows(call, x)
    y = _pooled(call, x, windows, _max_pool)
    if not wants(call, 1):
        return y
    return y, _places(call, x, y, windows)


@operator("AveragePool")
def average(call: Call) -> Held:
    is_counted = bool(call.attribute("count_include_pad", 0))
    if isinstance(call.images(0), Blocked):
        return _pooled_blocks(call, _average_pool, count_include_pad=is_counted)
    (x,) = tensors(call, 1)
    return _pooled(call, x, _windows(call, x), _average_pool, count_include_pad=is_counted)


@operator("GlobalMaxPool", ranks=(at_least(2),))
def global_largest(call: Call) -> Tensor:
    return _of_all(call, "max")


@operator("GlobalAveragePool", ranks=(at_least(2),))
def global_average(call: Call) -> Tensor:
    return _of_all(call, "mean")


@operator("LpPool", since=2)
def norm(call: Call) -> Tensor:
    (x,) = tensors(call, 1)
    powers = _powers(call, x)
    return _root(call, _pooled(call, powers, _windows(call, x), _sum_pool), x.dtype)


@operator("GlobalLpPool", since=2, ranks=(at_least(2),))
def global_norm(call: Call) -> Tensor:
    (x,) = tensors(call, 1)
    axes = tuple(range(2, len(x.shape)))
    fold = _reduction("sum", x.shape, axes, dtype=wide(x.dtype), keepdims=True)
    return _root(call, fold(_powers(call, x)), x.dtype)


def _powers(call: Call, x: TensorHandle) -> TensorHandle:
    """The powers of elements that an Lp norm sums."""
    power, total = call.attribute("p", 2), wide(x.dtype)
    if power < 1:
        raise call.node.error(f"there is no norm {power}: the least is 1")
    if power == 1:
        return computed(x.shape, lambda *at: abs(x[at].to(total)))
    if power == 2:
        return computed(x.shape, lambda *at: x[at].to(total) * x[at].to(total))
    return computed(x.shape, lambda *at: abs(x[at].to(total)) ** power)


def _root(call: Call, sums: TensorHandle, dtype: DType) -> TensorHandle:
    """The norm, from its sum of powers."""
    power = call.attribute("p", 2)
    if power == 1:
        return computed(sums.shape, lambda *at: sums[at].to(dtype))
    if power == 2:
        return computed(sums.shape, lambda *at: tc.sqrt(sums[at]).to(dtype))
    return computed(sums.shape, lambda *at: (sums[at] ** (1 / power)).to(dtype))


def _windows(call: Call, x: TensorHandle) -> Windows:
    return windows_of(call, spatial(call, x.shape), tuple(call.attribute("kernel_shape")))


def _of_all(call: Call, function: str) -> Tensor:
    blocks = call.images(0)
    if isinstance(blocks, Blocked):
        n, c, height, width = blocks.shape
        pool = _global_pools[function](
            n, height, width, c, order="NCHWc", results="NCHW", dtype=blocks.dtype
        )
        whole: TensorHandle = pool(blocks.handle)
        return whole
    (x,) = tensors(call, 1)
    images, channels, *extents = x.shape
    pixels = size(extents)
    reduced = _reduction(function, (images, channels, pixels), (2,), dtype=x.dtype)(
        x.reshape(images, channels, pixels)
    )
    pooled: TensorHandle = reduced.reshape(images, channels, *[1] * len(extents))
    return pooled


def _pooled_blocks(call: Call, pool: Callable[..., Any], **options: Any) -> Blocked:
    x: Blocked = call.images(0)
    images, channels, height, width = x.shape
    windows = windows_of(call, (height, width), tuple(call.attribute("kernel_shape")))
    kernel = pool(
        images, height, width, channels,
        size=windows.size, stride=windows.stride, dilation=windows.dilation, padding=windows.padding,
        ceil_mode=_is_ceil(call), order="NCHWc", dtype=x.dtype, **options,
    )  # fmt: skip
    return Blocked(kernel(x.handle), channels)


def _is_ceil(call: Call) -> bool:
    return bool(call.attribute("ceil_mode", 0)) and call.attribute("auto_pad", "NOTSET") == "NOTSET"


def _pooled(
    call: Call, x: TensorHandle, windows: Windows, pool: Callable[..., Any], **options: Any
) -> TensorHandle:
    """Pool by the library's 2-D kernel. 3-D images are pooled within slices first, and then along depth."""
    images, channels, *extents = x.shape
    options["ceil_mode"] = _is_ceil(call)
    if len(extents) == 3:
        depth, height, width = extents
        flat = x.reshape(images, channels * depth, height, width)
        slices = _plane(flat, windows, (1, 2), pool, options)
        rows, columns = slices.shape[2:]
        columns_of = slices.reshape(images, channels, depth, rows * columns)
        y = _plane(columns_of, windows, (0, None), pool, options)
        shape = [y.shape[2], rows, columns]
    elif len(extents) == 2:
        y = _plane(x, windows, (0, 1), pool, options)
        shape = [*y.shape[2:]]
    else:
        y = _plane(x.reshape(images, channels, 1, *extents), windows, (None, 0), pool, options)
        shape = [y.shape[3]]
    return reshaped(y, images, channels, *shape)


def _plane(
    x: Any, windows: Windows, axes: tuple[int | None, ...], pool: Callable[..., Any], options: Any
) -> TensorHandle:
    """Pool along two of the windows' axes; None is an axis that isn't pooled."""
    images, channels, height, width = x.shape

    def of(values: tuple[int, ...], none: int) -> tuple[int, ...]:
        return tuple(none if axis is None else values[axis] for axis in axes)

    kernel = pool(
        images, height, width, channels,
        size=of(windows.size, 1), stride=of(windows.stride, 1), dilation=of(windows.dilation, 1),
        padding=(*of(windows.before, 0), *of(windows.behind, 0)),
        order="NCHW", dtype=x.dtype, **options,
    )  # fmt: skip
    pooled: TensorHandle = kernel(x)
    return pooled


def _places(call: Call, x: TensorHandle, y: TensorHandle, windows: Windows) -> TensorHandle:
    """The place of each maximum, counted through the whole tensor."""
    images, channels, *extents = x.shape
    results = y.shape[2:]
    rank = len(extents)
    ones, zeros = (1,) * (3 - rank), (0,) * (3 - rank)
    kernel = _places_kernel(
        images * channels, (*ones, *extents), (*ones, *results), (*ones, *windows.size),
        (*ones, *windows.stride), (*ones, *windows.dilation), (*zeros, *windows.before),
        dtype=x.dtype, is_by_columns=bool(call.attribute("storage_order", 0)),
    )  # fmt: skip
    flat = kernel(x.reshape(images * channels, *ones, *extents))
    places: TensorHandle = flat.reshape(*y.shape)
    return places


def _make_places(
    planes: Any, extents: Any, results: Any, size: Any, stride: Any, dilation: Any, before: Any,
    *, dtype: DType, is_by_columns: bool, machine: tc.Machine,
) -> tc.KernelDefinition:  # fmt: skip
    own = lanes(machine.of(wide(dtype)).lanes)
    depth, height, width = extents
    _, rows, columns = results
    count, volume = prod(results), prod(extents)

    @tc.function
    def seen(axis, place, tap):
        return place * stride[axis] + tap * dilation[axis] - before[axis]

    @tc.kernel(workers=own.workers)
    def places(x: dtype[planes, depth, height, width], y: tc.out[i64[planes, count]]):
        for plane, first in tc.tiles((planes, count), by=(1, own.workers)):
            largest = tc.tile(dtype, own, dtype.minimum)
            place = tc.tile(i64, own, -1)
            for a in range(size[0]):
                for b in range(size[1]):
                    for c in range(size[2]):
                        for j in own:
                            k = seen(0, (first + j) // (rows * columns), a)
                            r = seen(1, (first + j) // columns % rows, b)
                            s = seen(2, (first + j) % columns, c)
                            is_inside = 0 <= k < depth and 0 <= r < height and 0 <= s < width
                            if first + j < count and is_inside:
                                value = x[plane, k, r, s]
                                if place[j] < 0 or value > largest[j]:
                                    largest[j] = value
                                    inside = s * height + r if is_by_columns else r * width + s
                                    place[j] = k * height * width + inside
            for j in own:
                if first + j < count:
                    y[plane, first + j] = plane * volume + max(place[j], 0)

    return places


_places_kernel = template(_make_places)
