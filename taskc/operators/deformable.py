"""DeformConv: a convolution whose windows read at places that are data, and interpolate between elements.

All windows are gathered first, a row for each window, with lanes for channels, because a place and the weights of its
four neighbours are the same for all channels. The rest is a product with the filters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, KernelDefinition, i64, spatial
from taskc.kernels.precision import wide
from taskc.kernels.transpose import transpose
from taskc.lang.tracing import TensorHandle
from taskc.operators.call import Call, Made, Tensor, operator
from taskc.operators.movement import inside
from taskc.operators.operands import computed, reshaped, template, tensors
from taskc.operators.products import multiplied
from taskc.operators.windows import Windows, windows_of

_transpose = template(transpose)


@operator("DeformConv", since=19)
def deform_conv(call: Call) -> Made:
    x, _, offsets, bias, mask = tensors(call, 5)
    _check(call)
    images, channels, height, width = x.shape
    (features, deep, *size), groups = call.shape(1), call.attribute("group", 1)
    parts, (rows, columns) = call.attribute("offset_group", 1), offsets.shape[2:]
    taps, pixels = size[0] * size[1], rows * columns
    windows = windows_of(call, (height, width), tuple(size))
    _check_results(call, windows)
    kernel = _windows(
        images, (height, width), channels, parts, (rows, columns), windows, dtype=x.dtype
    )
    one, factors = x.dtype, (images, parts, taps, pixels)
    seen = kernel(
        _transpose(x.shape, (0, 2, 3, 1), dtype=x.dtype)(x),
        offsets.reshape(images, parts, taps, 2, pixels),
        computed(factors, lambda *at: one(1)) if mask is None else mask.reshape(*factors),
    )
    if groups > 1:
        seen = _by_groups(seen, groups, deep)
    between = [] if groups == 1 else [groups]
    made = multiplied(
        seen.reshape(images, *between, pixels, taps * deep), _by_taps(call.given(1), groups)
    )
    turned = _transpose(made.shape, (0, 2, 1) if groups == 1 else (0, 1, 3, 2), dtype=x.dtype)(made)
    y = reshaped(turned, images, features, rows, columns)
    return y if bias is None else computed(y.shape, lambda *at: y[at] + bias[at[1]])


def _check(call: Call) -> None:
    """Check that shapes fit each other, as far as they are numbers."""
    x, filters, offsets = (call.shape(n) for n in range(3))
    if not len(x) == len(filters) == len(offsets) == 4:
        raise call.node.error(f"taskc has it for 2 spatial axes, and x has {len(x) - 2}")
    groups, parts = call.attribute("group", 1), call.attribute("offset_group", 1)
    if x[1] % parts or x[1] != filters[1] * groups or filters[0] % groups:
        raise call.node.error(
            f"{x[1]} channels in {groups} groups, with offsets for {parts}, don't fit filters {[*filters]}"
        )
    wanted = parts * filters[2] * filters[3] * 2
    if offsets[1] != wanted:
        raise call.node.error(f"it has {offsets[1]} offsets of a window, and not {wanted}")


def _check_results(call: Call, windows: Windows) -> None:
    """Check that there are offsets for each window, as far as extents are numbers."""
    given, extents = call.shape(2)[2:], call.shape(0)[2:]
    if not all(isinstance(extent, int) for extent in (*given, *extents)):
        return
    axes = zip(
        extents, windows.before, windows.behind, windows.covered, windows.stride, strict=True
    )
    wanted = [(n + low + high - covered) // step + 1 for n, low, high, covered, step in axes]
    if [*given] != wanted:
        raise call.node.error(f"its offsets are of {[*given]} windows, and not {wanted}")


def _by_groups(seen: TensorHandle, groups: int, deep: int) -> TensorHandle:
    """Gathered windows with their channels split into groups, groups before pixels."""
    images, pixels, taps, _ = seen.shape
    shape = (images, groups, pixels, taps, deep)
    return computed(shape, lambda n, group, p, tap, c: seen[n, p, tap, group * deep + c])


def _by_taps(filters: Tensor, groups: int) -> Tensor:
    """Filters as the right operand of a product, with one matrix for each group if there are several."""
    features, deep, *size = filters.shape
    taps, each = size[0] * size[1], features // groups
    parts = reshaped(filters, groups, each, deep, taps)
    if isinstance(parts, np.ndarray):
        turned: Tensor = parts.transpose(0, 3, 2, 1)
    else:
        turned = computed((groups, taps, deep, each), lambda group, t, c, f: parts[group, f, c, t])
    between = [] if groups == 1 else [groups]
    return reshaped(turned, *between, taps * deep, each)


def _make_windows(
    images: Any, extents: tuple[Any, Any], channels: Any, parts: int, results: tuple[Any, Any],
    windows: Windows, *, dtype: DType, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    total = wide(dtype)
    own = spatial(machine.of(total).lanes)
    (height, width), (rows, columns), each = extents, results, channels // parts
    (down, right), (step, apart), (above, left) = windows.stride, windows.dilation, windows.before
    pixels, taps, across = rows * columns, windows.size[0] * windows.size[1], windows.size[1]
    corners = ((0, 0), (0, 1), (1, 0), (1, 1))

    @tc.function
    def weighted(at, low, corner):
        return 1 - abs(at - (low + corner).to(total))

    @tc.function
    def see(x, offsets, mask, y, n, pixel, tap, part):
        row = (pixel // columns * down + tap // across * step - above).to(total)
        column = (pixel % columns * right + tap % across * apart - left).to(total)
        r = row + offsets[n, part, tap, 0, pixel].to(total)
        s = column + offsets[n, part, tap, 1, pixel].to(total)
        above_r, left_s = tc.floor(r).to(i64), tc.floor(s).to(i64)
        places = tuple((above_r + a, left_s + b) for a, b in corners)
        seen = tuple(0 <= a < height and 0 <= b < width for a, b in places)
        factor = mask[n, part, tap, pixel].to(total)
        weights = tuple(
            factor * weighted(r, above_r, a) * weighted(s, left_s, b) for a, b in corners
        )
        for c in range(0, each, own.workers):
            for j in own:
                if c + j < each:
                    channel = part * each + c + j
                    found = total(0)
                    for k in tc.static(range(4)):
                        if seen[k]:
                            i, m = inside(places[k][0], height), inside(places[k][1], width)
                            found += weights[k] * x[n, i, m, channel].to(total)
                    y[n, pixel, tap, channel] = found.to(dtype)

    @tc.kernel(workers=own.workers)
    def windows_seen(
        x: dtype[images, height, width, channels],
        offsets: dtype[images, parts, taps, 2, pixels],
        mask: dtype[images, parts, taps, pixels],
        y: tc.out[dtype[images, pixels, taps, channels]],
    ):
        for n, pixel in tc.tiles((images, pixels), by=(1, 1)):
            for tap in range(taps):
                for part in range(parts):
                    see(x, offsets, mask, y, n, pixel, tap, part)

    return windows_seen


_windows = template(_make_windows)
