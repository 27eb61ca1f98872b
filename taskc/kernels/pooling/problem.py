"""A pooling as a problem: its options, and where its numbers lie, whichever kernel computes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, boolean
from taskc.dataclass import dataclass
from taskc.kernels.images import check_orders, images_type, number_at, results_inside
from taskc.kernels.signatures import ASSUMED_SIDE, Extent, Function, Value, known, wide
from taskc.kernels.windows import Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Pairs are of height and width; padding is above, left, below and right.

    operator  "max", "sum" or "average"
    outputs   the rows and columns of results; the last windows may reach beyond the padding
    order     where the numbers of images lie; results: where those of results do
    lanes     channels of a block of NCHWc
    counts_padding  an average is of padding's zeros, too
    result    the type of results, where it isn't that of images
    """

    operator: str
    images: Extent
    extents: tuple[Extent, Extent]
    channels: int
    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    outputs: tuple[Extent, Extent]
    order: str
    results: str
    lanes: int
    dtype: DType
    counts_padding: bool = False
    result: DType | None = None

    @property
    def given(self) -> TensorType:
        return images_type(
            self.dtype, self.images, self.extents, self.channels, self.order, self.lanes
        )

    @property
    def made(self) -> TensorType:
        return images_type(
            self.result or self.dtype,
            self.images,
            self.outputs,
            self.channels,
            self.results,
            self.lanes,
        )

    @property
    def image_at(self) -> Function:
        """The indices of an image's number."""
        return number_at(self.order)

    @property
    def output_at(self) -> Function:
        """The indices of a result."""
        return number_at(self.results)

    @property
    def is_global(self) -> bool:
        """Each result is of a whole image."""
        # What is known only at a call compares with nothing but itself.
        both = zip(self.size, self.extents, strict=True)
        is_whole = all(
            taps == extent if isinstance(extent, int) and isinstance(taps, int) else taps is extent
            for taps, extent in both
        )
        return is_whole and not any(self.padding)

    @property
    def is_sized(self) -> bool:
        """Height and width are numbers, and not known only at a call."""
        return all(isinstance(extent, int) for extent in self.extents)

    @property
    def assumed(self) -> Problem:
        """The problem with a number for each height and width, for plans."""
        if self.is_sized:
            return self
        (height, width), (rows, columns) = (
            [known(n, ASSUMED_SIDE) for n in both] for both in (self.extents, self.outputs)
        )
        return replace(self, extents=(height, width), outputs=(rows, columns))

    @property
    def wide(self) -> DType:
        """The type of folds: f32 for numbers of 16 bits, and the result is rounded once."""
        return wide(self.dtype)

    @property
    def start(self) -> Any:
        """The neutral element of the fold."""
        if self.operator != "max":
            return 0
        return -tc.inf if self.wide.is_float else self.wide.minimum

    @property
    def folded(self) -> Function:
        """The fold of two numbers."""

        return tc.function(lambda a, b: max(a, b) if self.operator == "max" else a + b)

    @property
    def finished(self) -> Function:
        """The result in row i and column j, from what its window has been folded into."""
        rows, columns = self._counted(0), self._counted(1)

        @tc.function
        def finished(value: Value, i: Value, j: Value) -> Any:
            if self.operator == "average":
                value /= self.wide(rows(i) * columns(j))
            return value.to(self.made.dtype)

        return finished

    def seen(self, pixels: int) -> int:
        """The columns from the first to the last that the windows of so many pixels beside each other see."""
        return (pixels - 1) * self.stride[1] + (self.size[1] - 1) * self.dilation[1] + 1

    def inside(self, axis: int) -> range:
        """The windows along an axis of which no tap lies outside of the image."""
        before, taps = self.padding[axis], (self.size[axis] - 1) * self.dilation[axis]
        return results_inside(self.extents[axis], self.stride[axis], -before, taps - before)

    def _counted(self, axis: int) -> Function:
        """How many taps along an axis are counted, of the window with a number."""
        taps, stride, step = self.size[axis], self.stride[axis], self.dilation[axis]
        before, after = self.padding[axis], self.padding[axis + 2]
        low, high = 0, self.extents[axis]
        if self.counts_padding:
            low, high = -before, high + after
        last = self.outputs[axis] - 1
        is_alike = (
            isinstance(last, int)
            and before + low <= 0
            and last * stride - before + (taps - 1) * step < high
        )

        @tc.function
        def counted(number: Value) -> Any:
            if is_alike:
                return taps
            else:
                first = number * stride - before
                end = min(taps, (high - first + step - 1) // step)
                return end - min(end, max(0, (low - first + step - 1) // step))

        return counted


def problem_of(
    *,
    extents: tuple[Extent, Extent],
    windows: Windows,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    order: str,
    results: str | None = None,
    **options: Any,
) -> Problem:
    """Check options and complete them; the others are as in a `Problem`."""
    check_orders(order, results or order)
    operator, dtype = options["operator"], options["dtype"]
    if dtype is boolean or (operator == "average" and not dtype.is_float):
        raise CompileError(f"there is no {operator} pooling of {dtype}")
    if (
        min(_numbers(*windows.size, *windows.dilation, *windows.stride)) < 1
        or min(windows.padding) < 0
    ):
        raise CompileError("extents of windows, strides and dilations begin at 1, padding at 0")
    outputs = windows.counts(extents, is_ceil=ceil_mode)
    if min(_numbers(*outputs, 1)) < 1:
        raise CompileError(
            f"a window that covers {windows.covered} does not fit into {windows.padded(extents)}",
            hint="these are heights and widths, with dilation and padding",
        )
    return Problem(
        extents=extents, outputs=outputs, **windows.options, counts_padding=count_include_pad,
        order=order, results=results or order, **options,
    )  # fmt: skip


def _numbers(*extents: Extent) -> list[int]:
    return [extent for extent in extents if isinstance(extent, int)]
