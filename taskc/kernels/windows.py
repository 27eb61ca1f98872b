"""Windows over the spatial axes of images, and over neighbouring channels.

Convolutions and poolings of one, two and three axes complete their options here.

columns_added        Col2Im: windows, a column for each, added up where they overlap
max_places           the place of each window's largest element, counted through the whole tensor
local_response_norm  elements over a power of the sum of their neighbours' squares
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, KernelDefinition, Machine, i64, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.signatures import Extent, wide
from taskc.programs.tracing import Computed, Element

_VECTORS = 4  # of pixels in a block

Pair = int | tuple[int, int]
Sides = int | tuple[int, int] | tuple[int, int, int, int]
Triple = int | tuple[int, int, int]
WINDOWS = ("size", "stride", "padding", "dilation")  # options of a call
SixSides = int | tuple[int, int, int] | tuple[int, int, int, int, int, int]


def along_axes(value: int | tuple[int, ...], axes: int, what: str) -> tuple[int, ...]:
    """A number for all axes, or one for each of them, as so many numbers."""
    if isinstance(value, int):
        return (value,) * axes
    if len(value) != axes:
        raise CompileError(f"{what} is a number, or one for each of {axes} axes, and not {value}")
    return tuple(value)


def _sides(value: int | tuple[int, ...], axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding before and after each axis."""
    if isinstance(value, tuple) and len(value) == 2 * axes:
        return value[:axes], value[axes:]
    if axes == 2 and isinstance(value, tuple) and len(value) != axes:
        raise CompileError(
            f"padding is a number, (above and below, beside) or (above, left, below, right), and not {value}"
        )
    both = along_axes(value, axes, "padding, where it isn't six," if axes == 3 else "padding")
    return both, both


@dataclass(frozen=True, slots=True)
class Windows:
    """For each spatial axis: taps of a window, distances of windows and of taps, and padding before and after."""

    size: tuple[Extent, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]

    @staticmethod
    def of(
        axes: int,
        *,
        size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
    ) -> Windows:
        """The windows of a call, whose options are numbers for all axes, or one for each of them.

        stride   the windows' size where it is None
        padding  before all axes and then after all, or the same before and after each
        """
        taps, apart = along_axes(size, axes, "size"), along_axes(dilation, axes, "dilation")
        steps = taps if stride is None else along_axes(stride, axes, "stride")
        return Windows(taps, steps, apart, *_sides(padding, axes))

    @property
    def padding(self) -> tuple[int, ...]:
        """The padding in the order that the library's kernels take: all before, then all after."""
        return (*self.before, *self.behind)

    @property
    def covered(self) -> tuple[Extent, ...]:
        """The extent from the first tap to the last."""
        return tuple((n - 1) * d + 1 for n, d in zip(self.size, self.dilation, strict=True))

    def padded(self, extents: Iterable[Extent]) -> tuple[Extent, ...]:
        axes = zip(extents, self.before, self.behind, strict=True)
        return tuple(n + low + high for n, low, high in axes)

    def counts(self, extents: Iterable[Extent], *, is_ceil: bool = False) -> tuple[Extent, ...]:
        """The number of windows along each axis of images of these extents.

        is_ceil  a last window may end beyond the padding, if it begins in the image or in the padding before it
        """
        if not is_ceil:
            axes = zip(self.padded(extents), self.covered, self.stride, strict=True)
            return tuple((whole - covered) // step + 1 for whole, covered, step in axes)
        counts = []
        for n, low, high, covered, step in self._axes(extents):
            # One more that ends beyond the padding, if it doesn't begin there: the same for all extents.
            beyond = high + step - covered
            counts.append((n + low + min(beyond, max(0, beyond - step)) + step - 1) // step)
        return tuple(counts)

    def extents(self, counts: Iterable[Extent]) -> tuple[Extent, ...]:
        """The least extents of images that have so many windows along each axis."""
        axes = self._axes(counts)
        return tuple((n - 1) * step + covered - low - high for n, low, high, covered, step in axes)

    def _axes(self, extents: Iterable[Extent]) -> Iterable[tuple[Extent, ...]]:
        """Extents, each with its axis' padding, covered extent and stride."""
        return zip(extents, self.before, self.behind, self.covered, self.stride, strict=True)

    @property
    def options(self) -> dict[str, Any]:
        """The windows as options of a call."""
        return {name: getattr(self, name) for name in WINDOWS}

    @property
    def is_of_columns(self) -> bool:
        """Whether these are 2-D windows of one unpadded column."""
        is_one = len(self.size) == 2 and self.size[1] == 1
        return is_one and (self.before[1], self.behind[1]) == (0, 0)

    def along(self, *axes: int | None) -> Windows:
        """The windows of some axes, in this order; an axis that is None has windows of one element."""

        def of(parts: tuple[Extent, ...], none: int) -> tuple[Extent, ...]:
            return tuple(none if axis is None else parts[axis] for axis in axes)

        return Windows(
            of(self.size, 1), of(self.stride, 1), of(self.dilation, 1), of(self.before, 0), of(self.behind, 0)
        )  # fmt: skip


def columns_added(
    planes: Extent, extents: tuple[Extent, ...], counts: tuple[Extent, ...], windows: Windows,
    *, dtype: DType, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """Sum, for each element, the entries of all windows that cover it."""
    total, axes = wide(dtype), range(len(extents))
    own = spatial(machine.of(total).lanes)
    taps, places, volume = prod(windows.size), prod(counts), prod(extents)
    strides = [prod(extents[axis + 1 :]) for axis in axes]
    steps = [prod(windows.size[axis + 1 :]) for axis in axes]

    @tc.function
    def distance(n: Element, tap: Element) -> Computed:
        """How far an element lies behind the first tap of the first window, for each axis, less its own tap."""
        return tuple(
            n // strides[axis] % extents[axis]
            + windows.before[axis]
            - tap // steps[axis] % windows.size[axis] * windows.dilation[axis]
            for axis in axes
        )

    @tc.function
    def place(parts: Computed) -> Computed:
        """The window of a number for each axis, counted through all."""
        found = 0
        for axis in tc.static(axes):
            found = found * counts[axis] + parts[axis] // windows.stride[axis]
        return min(max(found, 0), places - 1)

    @tc.kernel(workers=own.workers)
    def columns(x: tc.typed[dtype[planes, taps, places]], y: tc.out[dtype[planes, volume]]) -> None:
        for plane, first in tc.tiles((planes, volume), by=(1, own.workers)):
            sums = tc.tile(total, own, 0)
            for tap in range(taps):
                for j in own:
                    parts = distance(first + j, tap)
                    is_seen = all(
                        parts[axis] >= 0
                        and parts[axis] % windows.stride[axis] == 0
                        and parts[axis] // windows.stride[axis] < counts[axis]
                        for axis in axes
                    )
                    if first + j < volume and is_seen:
                        sums[j] += x[plane, tap, place(parts)].to(total)
            for j in own:
                if first + j < volume:
                    y[plane, first + j] = sums[j].to(dtype)

    return columns


def max_places(
    planes: Extent, extents: tuple[Extent, ...], results: tuple[Extent, ...], windows: Windows,
    *, dtype: DType, is_by_columns: bool, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    own = spatial(machine.of(wide(dtype)).lanes)
    depth, height, width = extents
    _, rows, columns = results
    count, volume = prod(results), prod(extents)

    @tc.function
    def seen(axis: int, place: Element, tap: Element) -> Computed:
        return place * windows.stride[axis] + tap * windows.dilation[axis] - windows.before[axis]

    @tc.kernel(workers=own.workers)
    def places(
        x: tc.typed[dtype[planes, depth, height, width]], y: tc.out[i64[planes, count]]
    ) -> None:
        for plane, first in tc.tiles((planes, count), by=(1, own.workers)):
            largest = tc.tile(dtype, own, dtype.minimum)
            place = tc.tile(i64, own, -1)
            for a in range(windows.size[0]):
                for b in range(windows.size[1]):
                    for c in range(windows.size[2]):
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


def local_response_norm(
    images: Extent, channels: Extent, pixels: Extent,
    *, dtype: DType, neighbours: int, alpha: float, beta: float, bias: float, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """x / (bias + alpha / neighbours * the sum of squares of neighbouring channels) ** beta."""
    total = wide(dtype)
    own = repeat(_VECTORS) * spatial(machine.of(total).lanes)
    many, before = own.shape[0], (neighbours - 1) // 2

    @tc.kernel(workers=own.workers)
    def local(
        x: tc.typed[dtype[images, channels, pixels]], y: tc.out[dtype[images, channels, pixels]]
    ) -> None:
        for image, channel, first in tc.tiles((images, channels, pixels), by=(1, 1, many)):
            sums = tc.tile(total, own, 0)
            for n in range(neighbours):
                other = channel + n - before
                if 0 <= other < channels:
                    for (j,) in own:
                        if first + j < pixels:
                            value = x[image, other, first + j].to(total)
                            sums[j] += value * value
            for (j,) in own:
                if first + j < pixels:
                    norm = (bias + alpha / neighbours * sums[j]) ** beta
                    y[image, channel, first + j] = (
                        x[image, channel, first + j].to(total) / norm
                    ).to(dtype)

    return local
