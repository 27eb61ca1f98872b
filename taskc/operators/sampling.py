"""GridSample: images sampled between their elements, at places that are data.

A kernel computes the taps of a place and their weights once for many channels.

RoiAlign: the mean or the maximum of samples spread evenly over each part of a box in an image.

DeformConv: a convolution whose windows read at places that are data, and interpolate between elements.

All windows are gathered first, a row for each window, with lanes for channels, because a place and the weights of its
four neighbours are the same for all channels. The rest is a product with the filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, KernelDefinition, boolean, f32, i32, i64, repeat, spatial
from taskc.kernels.signatures import wide
from taskc.kernels.transpose import transpose
from taskc.operators.call import Call, Made, Tensor, at_least, operator
from taskc.operators.movement import inside
from taskc.operators.operands import computed, equals, reshaped, size, template, tensors
from taskc.operators.products import multiplied
from taskc.operators.resizing import cubic, rounded
from taskc.operators.windows import Windows, windows_of
from taskc.programs.tracing import TensorHandle

_CHANNELS = 32  # of a block; all are read at the same places
_CUBIC = -0.75  # Keys' parameter, as ONNX fixes it
_TAPS = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}
_FIRST_NAMES = {"bilinear": "linear", "bicubic": "cubic"}  # of versions for 2-D images alone


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an axis is sampled between its elements.

    mode        "nearest", "linear" or "cubic"
    padding     "zeros", "border" or "reflection"
    is_aligned  -1 and 1 are the centers of the first and the last element, not their outer edges
    """

    mode: str
    padding: str
    is_aligned: bool

    @property
    def taps(self) -> range:
        """Offsets of the elements that count, from the one below a place."""
        return _TAPS[self.mode]

    def coordinate(self, extent: Any, real: DType) -> Callable[..., Any]:
        """Maps a number from -1 to 1 to a place; one outside may be clamped or reflected back."""
        last, is_aligned = extent - 1, self.is_aligned
        low, beyond = (0.0, 0.0) if is_aligned else (-0.5, 0.5)

        @tc.function
        def scaled(number):
            return (
                (number + 1) / 2 * real(last)
                if is_aligned
                else ((number + 1) * real(extent) - 1) / 2
            )

        @tc.function
        def reflected(at):
            high = real(last) + beyond
            over = low - at if at < low else at - high
            turns = tc.floor(over / (high - low)) if high > low else 0
            rest = over - turns * (high - low)
            is_low = (at < low) == (turns % 2 == 0)
            return min(max(low + rest if is_low else high - rest, low), high)

        @tc.function
        def coordinate(number):
            at = scaled(number)
            is_outside = at < low or at > real(last) + beyond
            if self.mode == "nearest":
                return round(at)
            elif self.padding == "border":
                return min(max(at, 0), real(last)) if is_outside else at
            elif self.padding == "reflection":
                back = reflected(at)
                return back if is_outside else at
            else:
                return at

        return coordinate

    @property
    def weight(self) -> Callable[..., Any]:
        """The weight of an element at a distance."""
        if self.mode == "linear":
            return tc.function(lambda d: max(0, 1 - abs(d)))
        return tc.function(lambda d: cubic(abs(d), _CUBIC))

    @property
    def element(self) -> Callable[..., Any]:
        """The element to read for a number that may be out of bounds; one of weight 0 may be any."""

        @tc.function
        def element(at, extent):
            if self.padding != "reflection":
                return inside(at, extent)
            elif self.is_aligned:
                turn = at % max(2 * extent - 2, 1)
                return inside(min(turn, 2 * extent - 2 - turn), extent)
            else:
                turn = at % (2 * extent)
                return inside(min(turn, 2 * extent - 1 - turn), extent)

        return element


@operator("GridSample", since=16, ranks=(at_least(2), at_least(2)))
def grid_sample(call: Call) -> Made:
    x, grid = tensors(call, 2)
    mode, padding = call.attribute("mode", "linear"), call.attribute("padding_mode", "zeros")
    mode = _FIRST_NAMES.get(mode, mode)
    if mode not in _TAPS or padding not in ("zeros", "border", "reflection"):
        raise call.node.error(f"taskc doesn't know its mode '{mode}' with padding '{padding}'")
    images, channels, *extents = x.shape
    rank, results, is_aligned = len(extents), grid.shape[1:-1], call.attribute("align_corners", 0)
    is_of_axes = 1 <= rank <= 3 and len(grid.shape) == rank + 2 and grid.shape[-1] == rank
    if not is_of_axes or not equals(grid.shape[0], images):
        raise call.node.error(f"its grid {[*grid.shape]} names no places of images {[*x.shape]}")
    if x.dtype is boolean and mode != "nearest":
        raise call.node.error(f"there is nothing between bools, and its mode is '{mode}'")
    exact = x.dtype if x.dtype.is_float or mode == "nearest" else f32
    kernel = _samples(
        images, channels, tuple(extents), size(results), dtype=x.dtype, given=grid.dtype,
        result=exact, how=Sampling(mode, padding, bool(is_aligned)),
    )  # fmt: skip
    y = kernel(x, grid.reshape(images, size(results), rank))
    samples = y if exact is x.dtype else rounded(y, x.dtype)
    return reshaped(samples, images, channels, *results)


def _make_samples(
    images: Any, channels: Any, extents: tuple[Any, ...], count: Any,
    *, dtype: DType, given: DType, result: DType, how: Sampling, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    axes, real, total = range(len(extents)), wide(given), wide(result)
    own = spatial(machine.of(total).lanes)
    whole, coordinates = (
        (images, channels, *extents),
        [how.coordinate(extent, real) for extent in extents],
    )
    element, weight, pads = how.element, how.weight, how.padding == "zeros"
    corners, is_nearest = tuple(product(how.taps, repeat=len(extents))), how.mode == "nearest"

    @tc.function
    def is_seen(below, corner):
        places = tuple(below[axis] + corner[axis] for axis in axes)
        return not pads or all(0 <= places[axis] < extents[axis] for axis in axes)

    @tc.function
    def elements(below, corner):
        return tuple(element(below[axis] + corner[axis], extents[axis]) for axis in axes)

    @tc.function
    def weighted(where, below, corner):
        counted = real(1)
        for axis in tc.static(axes):
            counted *= weight(where[axis] - (below[axis] + corner[axis]).to(real))
        return counted.to(total)

    @tc.function
    def summed(x, image, channel, seen, places, weights):
        found = total(0)
        for n in tc.static(range(len(corners))):
            if seen[n]:
                at = (image, channel, *places[n])
                found = x[at].to(total) if is_nearest else found + weights[n] * x[at].to(total)
        return found

    @tc.kernel(workers=own.workers)
    def samples(
        x: dtype[whole],
        grid: given[images, count, len(extents)],
        y: tc.out[result[images, channels, count]],
    ):
        shape, by = (images, channels, count), (1, _CHANNELS, own.workers)
        for image, channel, first in tc.tiles(shape, by=by):
            for j in own:
                if first + j < count:
                    where = tuple(
                        coordinates[axis](grid[image, first + j, len(extents) - 1 - axis].to(real))
                        for axis in axes
                    )
                    below = tuple(tc.floor(where[axis]).to(i32) for axis in axes)
                    seen = tuple(is_seen(below, corner) for corner in corners)
                    places = tuple(elements(below, corner) for corner in corners)
                    weights = (
                        ()
                        if is_nearest
                        else tuple(weighted(where, below, corner) for corner in corners)
                    )
                    for c in range(_CHANNELS):
                        if channel + c < channels:
                            found = summed(x, image, channel + c, seen, places, weights)
                            y[image, channel + c, first + j] = found.to(result)

    return samples


_samples = template(_make_samples)


_VECTORS = 4  # of channels in a block

_transpose = template(transpose)


@dataclass(frozen=True, slots=True)
class Parts:
    """How boxes are divided and sampled.

    rows, columns  number of parts of a box
    most           a part's result is its maximum, not its mean
    count          samples along an axis of a part; 0: one for each element that it covers
    scale, shift   map a box's coordinates to places of an image
    is_whole       a box is at least one element wide and high
    """

    rows: int
    columns: int
    most: bool
    count: int
    scale: float
    shift: float
    is_whole: bool


@operator("RoiAlign", since=10)
def roi_align_from_corners(call: Call) -> Made:
    return _aligned(call, is_shifted=False)


@operator("RoiAlign", since=16)
def roi_align(call: Call) -> Made:
    way = call.attribute("coordinate_transformation_mode", "half_pixel")
    if way not in ("half_pixel", "output_half_pixel"):
        raise call.node.error(f"taskc doesn't know its coordinates '{way}'")
    return _aligned(call, is_shifted=way == "half_pixel")


def _aligned(call: Call, is_shifted: bool) -> Made:
    x, boxes, batch = tensors(call, 3)
    mode = call.attribute("mode", "avg")
    if mode not in ("avg", "max"):
        raise call.node.error(f"taskc doesn't know its mode '{mode}'")
    if len(x.shape) != 4 or len(boxes.shape) != 2 or boxes.shape[1] != 4:
        raise call.node.error(f"its images are {[*x.shape]}, and its boxes {[*boxes.shape]}")
    parts = Parts(
        call.attribute("output_height", 1), call.attribute("output_width", 1), mode == "max",
        call.attribute("sampling_ratio", 0), call.attribute("spatial_scale", 1.0),
        0.5 if is_shifted else 0.0, not is_shifted,
    )  # fmt: skip
    images, channels, *extents = x.shape
    by_channels = _transpose(x.shape, (0, 2, 3, 1), dtype=x.dtype)(x)
    problem = f"{call.node.title}: each box is of an image"
    kernel = _regions(
        images,
        tuple(extents),
        channels,
        boxes.shape[0],
        dtype=x.dtype,
        parts=parts,
        problem=problem,
    )
    pooled = kernel(by_channels, boxes, batch)
    return reshaped(pooled, boxes.shape[0], channels, parts.rows, parts.columns)


def _make_regions(
    images: Any, extents: tuple[Any, Any], channels: Any, count: Any,
    *, dtype: DType, parts: Parts, problem: str, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    """Lanes hold channels, so that places and weights are computed once for all of them."""
    total = wide(dtype)
    lanes = machine.of(total).lanes
    own = repeat(_VECTORS) * spatial(lanes)
    (height, width), (many,), pieces = extents, own.shape, parts.rows * parts.columns

    @tc.function
    def span(boxes, box, axis, number):
        """Where a box begins along an axis, and the distance between its parts."""
        low = boxes[box, axis].to(total) * parts.scale - parts.shift
        length = boxes[box, axis + 2].to(total) * parts.scale - parts.shift - low
        return low, (max(length, 1) if parts.is_whole else length) / number

    @tc.function
    def places_in(size):
        return i64(parts.count) if parts.count > 0 else max(tc.ceil(size).to(i64), 0)

    @tc.function
    def between(at, extent):
        """The element below a place, the one above, and the weight of the latter."""
        limited = max(at, 0)
        low = inside(limited.to(i64), extent)
        high = inside(low + 1, extent)
        return low, high, limited - low.to(total) if low < extent - 1 else total(0)

    @tc.function
    def read(x, image, rows, columns, channel):
        above, below, down = rows
        before, behind, across = columns
        a = (1 - down) * (1 - across) * x[image, above, before, channel].to(total)
        b = (1 - down) * across * x[image, above, behind, channel].to(total)
        c = down * (1 - across) * x[image, below, before, channel].to(total)
        d = down * across * x[image, below, behind, channel].to(total)
        return max(a, b, c, d) if parts.most else a + b + (c + d)

    @tc.function
    def folded(old, new, is_first):
        return (new if is_first else max(old, new)) if parts.most else old + new

    @tc.kernel(workers=own.workers)
    def regions(
        x: dtype[images, height, width, channels],
        boxes: dtype[count, 4],
        batch: i64[count],
        y: tc.out[dtype[count, channels, pieces]],
    ):
        for box, channel in tc.tiles((count, channels), by=(1, many)):
            results = tc.shared(total[pieces, many])
            image = batch[box]
            assert 0 <= image < images, problem
            left, across = span(boxes, box, 0, parts.columns)
            top, down = span(boxes, box, 1, parts.rows)
            tall, broad = places_in(down), places_in(across)
            for piece in range(pieces):
                found = tc.tile(total, own, 0)
                upper = top + (piece // parts.columns).to(total) * down
                start = left + (piece % parts.columns).to(total) * across
                for r in range(tall):
                    row = upper + (r.to(total) + 0.5) * down / tall.to(total)
                    rows = between(row, height)
                    for s in range(broad):
                        column = start + (s.to(total) + 0.5) * across / broad.to(total)
                        columns = between(column, width)
                        is_inside = -1 <= row <= height and -1 <= column <= width
                        for (c,) in own:
                            if channel + c < channels:
                                value = total(0)
                                if is_inside:
                                    value = read(x, image, rows, columns, channel + c)
                                found[c] = folded(found[c], value, r == 0 and s == 0)
                number = i64(1) if parts.most else max(tall * broad, 1)
                for (c,) in own:
                    results[piece, c] = found[c] / number.to(total)
            for c in range(many):
                if channel + c < channels:
                    for first in range(0, pieces, lanes):
                        for j in spatial(lanes):
                            if first + j < pieces:
                                y[box, channel + c, first + j] = results[first + j, c].to(dtype)

    return regions


_regions = template(_make_regions)


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
