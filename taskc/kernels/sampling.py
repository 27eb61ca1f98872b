"""Images sampled between their elements, at places that are data.

grid_samples        GridSample: a kernel computes the taps of a place and their weights once for many channels
roi_align           the mean or the maximum of samples spread evenly over each part of a box in an image
deformable_windows  the windows of a convolution that reads at such places, gathered

The last two have lanes for channels, because a place and the weights of its neighbours are the same for all channels.
"""

from __future__ import annotations

from itertools import product

import taskc as tc
from taskc import DType, KernelDefinition, Machine, i32, i64, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.indices import inside
from taskc.kernels.signatures import Extent, Function, wide
from taskc.kernels.windows import Windows
from taskc.programs.tracing import Computed, Element

_CHANNELS = 32  # of a block; all are read at the same places
_CUBIC = -0.75  # Keys' parameter, as ONNX fixes it
_VECTORS = 4  # of channels in a block
TAPS = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}


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
        return TAPS[self.mode]

    def coordinate(self, extent: Extent, real: DType) -> Function:
        """Maps a number from -1 to 1 to a place; one outside may be clamped or reflected back."""
        last, is_aligned = extent - 1, self.is_aligned
        low, beyond = (0.0, 0.0) if is_aligned else (-0.5, 0.5)

        @tc.function
        def scaled(number: Element) -> Computed:
            return (
                (number + 1) / 2 * real(last)
                if is_aligned
                else ((number + 1) * real(extent) - 1) / 2
            )

        @tc.function
        def reflected(at: Element) -> Computed:
            high = real(last) + beyond
            over = low - at if at < low else at - high
            turns = tc.floor(over / (high - low)) if high > low else 0
            rest = over - turns * (high - low)
            is_low = (at < low) == (turns % 2 == 0)
            return min(max(low + rest if is_low else high - rest, low), high)

        @tc.function
        def coordinate(number: Element) -> Computed:
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
    def weight(self) -> Function:
        """The weight of an element at a distance."""
        if self.mode == "linear":
            return tc.function(lambda d: max(0, 1 - abs(d)))
        return tc.function(lambda d: cubic(abs(d), _CUBIC))

    @property
    def element(self) -> Function:
        """The element to read for a number that may be out of bounds; one of weight 0 may be any."""

        @tc.function
        def element(at: Element, extent: Extent) -> Computed:
            if self.padding != "reflection":
                return inside(at, extent)
            elif self.is_aligned:
                turn = at % max(2 * extent - 2, 1)
                return inside(min(turn, 2 * extent - 2 - turn), extent)
            else:
                turn = at % (2 * extent)
                return inside(min(turn, 2 * extent - 1 - turn), extent)

        return element


@tc.function
def cubic(d: Element, a: Element) -> Computed:
    """Keys' cubic convolution at a distance."""
    return (
        ((a + 2) * d - (a + 3)) * d * d + 1
        if d <= 1
        else (((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0)
    )


def grid_samples(
    images: Extent, channels: Extent, extents: tuple[Extent, ...], count: Extent,
    *, dtype: DType, given: DType, result: DType, how: Sampling, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    axes, real, total = range(len(extents)), wide(given), wide(result)
    own = spatial(machine.of(total).lanes)
    whole = images, channels, *extents
    coordinates = [how.coordinate(extent, real) for extent in extents]
    element, weight, pads = how.element, how.weight, how.padding == "zeros"
    corners, is_nearest = tuple(product(how.taps, repeat=len(extents))), how.mode == "nearest"

    @tc.function
    def is_seen(below: Computed, corner: Computed) -> Computed:
        places = tuple(below[axis] + corner[axis] for axis in axes)
        return not pads or all(0 <= places[axis] < extents[axis] for axis in axes)

    @tc.function
    def elements(below: Computed, corner: Computed) -> Computed:
        return tuple(element(below[axis] + corner[axis], extents[axis]) for axis in axes)

    @tc.function
    def weighted(where: Computed, below: Computed, corner: Computed) -> Computed:
        counted = real(1)
        for axis in tc.static(axes):
            counted *= weight(where[axis] - (below[axis] + corner[axis]).to(real))
        return counted.to(total)

    @tc.function
    def summed(
        x: Element,
        image: Element,
        channel: Element,
        seen: Element,
        places: Computed,
        weights: Computed,
    ) -> Computed:
        found = total(0)
        for n in tc.static(range(len(corners))):
            if seen[n]:
                at = (image, channel, *places[n])
                found = x[at].to(total) if is_nearest else found + weights[n] * x[at].to(total)
        return found

    @tc.kernel(workers=own.workers)
    def samples(
        x: tc.typed[dtype[whole]],
        grid: tc.typed[given[images, count, len(extents)]],
        y: tc.out[result[images, channels, count]],
    ) -> None:
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


def roi_align(
    images: Extent, extents: tuple[Extent, ...], channels: Extent, count: Extent,
    *, dtype: DType, parts: Parts, problem: str, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """Lanes hold channels, so that places and weights are computed once for all of them."""
    total = wide(dtype)
    lanes = machine.of(total).lanes
    own = repeat(_VECTORS) * spatial(lanes)
    (height, width), (many,), pieces = extents, own.shape, parts.rows * parts.columns

    @tc.function
    def span(boxes: Element, box: Element, axis: Element, number: Element) -> Computed:
        """Where a box begins along an axis, and the distance between its parts."""
        low = boxes[box, axis].to(total) * parts.scale - parts.shift
        length = boxes[box, axis + 2].to(total) * parts.scale - parts.shift - low
        return low, (max(length, 1) if parts.is_whole else length) / number

    @tc.function
    def places_in(size: Element) -> Computed:
        return i64(parts.count) if parts.count > 0 else max(tc.ceil(size).to(i64), 0)

    @tc.function
    def between(at: Computed, extent: Extent) -> Computed:
        """The element below a place, the one above, and the weight of the latter."""
        limited = max(at, 0)
        low = inside(limited.to(i64), extent)
        high = inside(low + 1, extent)
        return low, high, limited - low.to(total) if low < extent - 1 else total(0)

    @tc.function
    def read(
        x: Element, image: Element, rows: Computed, columns: Computed, channel: Element
    ) -> Computed:
        above, below, down = rows
        before, behind, across = columns
        a = (1 - down) * (1 - across) * x[image, above, before, channel].to(total)
        b = (1 - down) * across * x[image, above, behind, channel].to(total)
        c = down * (1 - across) * x[image, below, before, channel].to(total)
        d = down * across * x[image, below, behind, channel].to(total)
        return max(a, b, c, d) if parts.most else a + b + (c + d)

    @tc.function
    def folded(old: Element, new: Element, is_first: bool) -> Computed:
        return (new if is_first else max(old, new)) if parts.most else old + new

    @tc.kernel(workers=own.workers)
    def regions(
        x: tc.typed[dtype[images, height, width, channels]],
        boxes: tc.typed[dtype[count, 4]],
        batch: i64[count],
        y: tc.out[dtype[count, channels, pieces]],
    ) -> None:
        for box, channel in tc.tiles((count, channels), by=(1, many)):
            results = tc.shared(total[pieces, many])
            image = batch[box]
            assert 0 <= image < images, problem
            left, across = span(boxes, box, 0, parts.columns)
            top, down = span(boxes, box, 1, parts.rows)
            tall, broad = places_in(down), places_in(across)
            for piece in range(pieces):
                found = tc.tile(total, own, 0)
                upper = top + total(piece // parts.columns) * down
                start = left + total(piece % parts.columns) * across
                for r in range(tall):
                    row = upper + (total(r) + 0.5) * down / tall.to(total)
                    rows = between(row, height)
                    for s in range(broad):
                        column = start + (total(s) + 0.5) * across / broad.to(total)
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


def deformable_windows(
    images: Extent, extents: tuple[Extent, ...], channels: Extent, parts: int, results: tuple[Extent, ...],
    windows: Windows, *, dtype: DType, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    total = wide(dtype)
    own = spatial(machine.of(total).lanes)
    (height, width), (rows, columns), each = extents, results, channels // parts
    (down, right), (step, apart), (above, left) = windows.stride, windows.dilation, windows.before
    pixels, taps, across = rows * columns, windows.size[0] * windows.size[1], windows.size[1]
    corners = ((0, 0), (0, 1), (1, 0), (1, 1))

    @tc.function
    def weighted(at: Element, low: Element, corner: int) -> Computed:
        return 1 - abs(at - (low + corner).to(total))

    @tc.function
    def see(
        x: Element,
        offsets: Element,
        mask: Element,
        y: Element,
        n: Element,
        pixel: Element,
        tap: Element,
        part: Element,
    ) -> None:
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
        x: tc.typed[dtype[images, height, width, channels]],
        offsets: tc.typed[dtype[images, parts, taps, 2, pixels]],
        mask: tc.typed[dtype[images, parts, taps, pixels]],
        y: tc.out[dtype[images, pixels, taps, channels]],
    ) -> None:
        for n, pixel in tc.tiles((images, pixels), by=(1, 1)):
            for tap in range(taps):
                for part in range(parts):
                    see(x, offsets, mask, y, n, pixel, tap, part)

    return windows_seen
