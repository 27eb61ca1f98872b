"""GridSample: images sampled between their elements, at places that are data.

A kernel computes the taps of a place and their weights once for many channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, boolean, f32, i32, spatial
from taskc.kernels.precision import wide
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.common import equals
from taskc.operators.movement import inside
from taskc.operators.operands import reshaped, size, template, tensors
from taskc.operators.resizing import cubic, rounded

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
