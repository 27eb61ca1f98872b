"""A convolution as a problem: its options, and where its numbers lie, whichever kernel computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType
from taskc.dataclass import dataclass
from taskc.kernels.epilogue import Epilogue
from taskc.kernels.images import check_orders, images_type, number_at
from taskc.kernels.signatures import (
    ASSUMED_PIXELS,
    ASSUMED_SIDE,
    Decorator,
    Extent,
    Function,
    Made,
    Value,
    Values,
    known,
    require_numbers,
    with_types,
)
from taskc.kernels.windows import WINDOWS, Windows, along_axes

# of a filter along an axis whose extent is assumed, at the least: the filter may be long
_STEPS = 16


@dataclass(frozen=True, slots=True)
class Slices:
    """The depth of images and filters: slices that lie one below the other, as the rows of one image do.

    more  slices at the end of the results of a transposed convolution; None of others
    """

    extent: int = 1
    size: int = 1
    stride: int = 1
    dilation: int = 1
    front: int = 0
    back: int = 0
    more: int | None = None

    @property
    def outputs(self) -> int:
        windows = Windows(
            (self.size,), (self.stride,), (self.dilation,), (self.front,), (self.back,)
        )
        if self.more is None:
            (count,) = windows.counts((self.extent,))
            return int(count)
        (least,) = windows.extents((self.extent,))
        return int(least) + self.more


@dataclass(frozen=True, slots=True)
class Problem:
    """Pairs are of height and width; padding is above, left, below and right.

    axes    of images: callers have none for height where there is 1, and one for depth where there are 3

    order   where the numbers of images lie, NHWC, NCHW, or NCHWc; results: where those of results do
    lanes   channels of a block of NCHWc
    transposed  an image's number is in the results around its place, and not a result of the numbers around its place
    packed  filters come as `pack` makes them
    in_place  the residual is where results go
    exact   sums are of products of what is given, and not, as Winograd's, of others
    around  the number that lies around images: the zero point of quantized ones
    right, total, result  the types of filters, of sums, and of results
    axes_given  the extents that callers have, where all rows are one here
    """

    images: Extent
    extents: tuple[Extent, Extent]
    channels: int
    features: int
    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    order: str
    results: str
    filters: str
    activation: Any
    bias: bool
    dtype: DType
    right: DType
    total: DType
    result: DType
    scale: bool = False
    residual: bool = False
    lanes: int = 16
    transposed: bool = False
    output_padding: tuple[int, int] = (0, 0)
    packed: bool = False
    in_place: bool = False
    exact: bool = True
    around: int = 0
    axes: int = 2
    slices: Slices = Slices()
    axes_given: tuple[Extent, ...] | None = None

    def check(self) -> None:
        """Raise an error if there is no such convolution."""
        channels, features, groups, filters = (
            self.channels,
            self.features,
            self.groups,
            self.filters,
        )
        require_numbers(
            "convolution", channels=channels, features=features, depth=self.slices.extent
        )
        orders = self.order, self.results
        check_orders(*orders)
        if self.axes != 2 and "NCHWc" in orders:
            raise CompileError("only images of two axes are blocked")
        if not self.is_sized and "NCHWc" in orders:
            raise CompileError("heights and widths of blocked images are numbers")
        if self.around and (self.transposed or not self.dtype.is_integer):
            raise CompileError("zeros lie around images of floats, and around transposed ones")
        if not self.is_sized and self.transposed:
            raise CompileError("heights and widths of transposed convolutions are numbers")
        known = ("OHWI", "OIHW", "IOHW") if self.transposed else ("OHWI", "OIHW")
        if filters not in known:
            raise CompileError(f"filters are {' or '.join(known)}, not {filters}")
        if groups < 1 or channels % groups or features % groups:
            raise CompileError(
                f"{channels} channels and {features} features are not {groups} groups of as many"
            )
        depths = self.slices.size, self.slices.stride, self.slices.dilation
        if min(*self.size, *self.stride, *self.dilation, *depths) < 1:
            raise CompileError(
                f"a filter of {self.size}, strides of {self.stride} and dilations of {self.dilation}:"
                " all are 1 or more"
            )
        outputs = (self.slices.outputs, *self.outputs)
        if min([extent for extent in outputs if isinstance(extent, int)]) < 1:
            raise CompileError(
                f"a filter that covers {self.covered} does not fit into {self.windows.padded(self.extents)}",
                hint="these are heights and widths, with dilation and padding",
            )

    @property
    def wide(self) -> DType:
        """The type of sums, which are in registers."""
        return self.total

    @property
    def is_ohwi(self) -> bool:
        return self.filters == "OHWI"

    @property
    def is_nhwc(self) -> bool:
        return self.order == "NHWC"

    @property
    def group_channels(self) -> int:
        """The channels of one group."""
        return self.channels // self.groups

    @property
    def group_features(self) -> int:
        return self.features // self.groups

    @property
    def windows(self) -> Windows:
        return Windows(self.size, self.stride, self.dilation, self.padding[:2], self.padding[2:])

    @property
    def covered(self) -> tuple[int, int]:
        """The rows and columns from the filter's first tap to its last."""
        down, right = self.windows.covered
        return down, right

    @property
    def outputs(self) -> tuple[Extent, Extent]:
        windows = self.windows
        if not self.transposed:
            rows, columns = windows.counts(self.extents)
            return rows, columns
        least = windows.extents(self.extents)
        return least[0] + self.output_padding[0], least[1] + self.output_padding[1]

    @property
    def spread(self) -> tuple[int, int]:
        """How far results are apart that take the same taps of neighbouring pixels."""
        return self.stride if self.transposed else (1, 1)

    def taps_of(self, phase: int) -> Iterator[tuple[int, int]]:
        """The columns of filters, and how far each moves a column, of every `spread`-th result from this one on."""
        for tap in range(self.size[1]):
            offset = tap * self.dilation[1] - self.padding[1]
            if not self.transposed:
                yield tap, offset
            elif (phase - offset) % self.stride[1] == 0:
                yield tap, (phase - offset) // self.stride[1]

    @property
    def is_sized(self) -> bool:
        """Height and width are numbers, and not known only at a call."""
        return all(isinstance(extent, int) for extent in self.extents)

    @property
    def assumed(self) -> Problem:
        """The problem with a number for each height and width, for plans."""
        if self.is_sized:
            return self
        axes = zip(self.extents, self.covered, self.stride, strict=True)
        height, width = (
            known(n, max(ASSUMED_SIDE, covered + _STEPS * step)) for n, covered, step in axes
        )
        return replace(self, extents=(height, width))

    @property
    def in_one_line(self) -> Problem:
        """The same of pixels one by one, whose rows are one."""
        height, width = self.extents
        given = {1: (width,), 2: self.extents, 3: (self.slices.extent, height, width)}[self.axes]
        length = self.slices.extent * height * width
        return replace(self, extents=(1, length), slices=Slices(), axes_given=given)

    @property
    def known_images(self) -> int:
        return known(self.images, 1)

    @property
    def pixels(self) -> Extent:
        """The number of all results."""
        return self.images * self.slices.outputs * self.outputs[0] * self.outputs[1]

    @property
    def known_pixels(self) -> int:
        return known(self.pixels, ASSUMED_PIXELS)

    @property
    def deep(self) -> int:
        """How many numbers a result is summed from."""
        return self.tap_count * self.group_channels

    @property
    def tap_count(self) -> int:
        return self.slices.size * self.size[0] * self.size[1]

    @property
    def allows_winograd(self) -> bool:
        """Winograd's sums may be taken, and there are some for it."""
        is_float = self.dtype is self.right is self.total and self.dtype in (tc.f32, tc.f64)
        steps = {*self.stride, *self.dilation, self.groups}
        is_allowed = not (self.exact or self.transposed)
        is_flat = self.axes == 2 and self.size == (3, 3)
        return is_allowed and is_float and is_flat and steps == {1} and self.is_sized

    @property
    def has_far_channels(self) -> bool:
        """Features beside each other take channels that lie far apart."""
        are_mixed = self.groups > 1 and self.group_features % self.lanes > 0
        return are_mixed and self.order == "NCHW" and self.axes == 2

    @property
    def is_pointwise(self) -> bool:
        """A result is of the pixel where it is."""
        is_whole = self.slices == Slices(self.slices.extent) and not any(self.output_padding)
        return self.size == self.stride == (1, 1) and not any(self.padding) and is_whole

    def images_of(
        self, dtype: DType, slices: int, extents: tuple[Extent, Extent], channels: int, order: str
    ) -> TensorType:
        height, width = extents
        seen = images_type(
            dtype, self.images, (slices * height, width), channels, order, self.lanes
        )
        axes = self.axes_given
        if axes is None:
            if self.axes == 2:
                return seen
            axes = (width,) if self.axes == 1 else (slices, height, width)
        given = (*axes, channels) if order == "NHWC" else (channels, *axes)
        return TensorType(dtype, (self.images, *given)).reshape(*seen.shape)

    @property
    def taps(self) -> tuple[Function, Function]:
        """The row and the column of the image where a tap of a pixel's filter is; they may be in the padding."""
        rows, columns = self.outputs

        @tc.function
        def row_of(pixel: Value, r: Value) -> Any:
            return pixel // columns % rows * self.stride[0] + r * self.dilation[0] - self.padding[0]

        @tc.function
        def column_of(pixel: Value, s: Value) -> Any:
            return pixel % columns * self.stride[1] + s * self.dilation[1] - self.padding[1]

        return row_of, column_of

    @property
    def image_at(self) -> Function:
        """The indices of an image's number."""
        return number_at(self.order)

    @property
    def output_at(self) -> Function:
        """The indices of a result's number."""
        return number_at(self.results)

    @property
    def filter_at(self) -> Function:
        """The indices of a filter's number: of IOHW, channels and features are those of all groups, and of one."""
        channels, features = self.group_channels, self.group_features

        @tc.function
        def filter_at(feature: Value, r: Value, s: Value, channel: Value) -> Any:
            return (
                (feature, r, s, channel)
                if self.filters == "OHWI"
                else (feature, channel, r, s)
                if self.filters == "OIHW"
                else (feature // features * channels + channel, feature % features, r, s)
            )

        return filter_at

    @property
    def result_at(self) -> Function:
        """The indices of a result, from its pixel's number and its feature."""
        rows, columns = self.outputs

        @tc.function
        def result_at(pixel: Value, feature: Value) -> Any:
            # Not by names for its parts: where rows and columns are all, they are one number again.
            return (
                (pixel // (rows * columns), pixel // columns % rows, pixel % columns, feature)
                if self.is_nhwc
                else (pixel // (rows * columns), feature, pixel // columns % rows, pixel % columns)
            )

        return result_at

    @property
    def of_sums(self) -> Epilogue:
        return Epilogue(
            bias=self.bias, scale=self.scale, residual=self.residual, activation=self.activation,
            total=self.total, made=self.images_of(
                self.result, self.slices.outputs, self.outputs, self.features, self.results
            ),
            features=self.features,
        )  # fmt: skip

    @property
    def epilogue(self) -> Function:
        """A result, from its sum, the further operands, its feature, and its indices."""
        return self.of_sums.function

    @property
    def stored_features(self) -> int:
        """With those that fill up a block of NCHWc."""
        features = self.of_sums.made.shape[self.results.index("C")]
        assert isinstance(features, int)
        return features

    @property
    def types(self) -> tuple[TensorType, TensorType, tuple[TensorType, ...], TensorType]:
        """Of images, filters, what else a result is made of, and results."""
        rows, columns = self.slices.size * self.size[0], self.size[1]
        features, channels = self.features, self.group_channels
        if self.filters == "IOHW":
            features, channels = self.group_features, self.channels
        axes = {1: (columns,), 2: self.size, 3: (self.slices.size, *self.size)}[self.axes]

        def shape(pixels: tuple[int, ...]) -> tuple[int, ...]:
            extents = {"O": (features,), "I": (channels,), "H": pixels, "W": ()}
            return tuple([extent for letter in self.filters for extent in extents[letter]])

        filters = TensorType(self.right, shape(axes))
        if self.axes != 2:
            filters = filters.reshape(*shape((rows, columns)))
        return (
            self.images_of(self.dtype, self.slices.extent, self.extents, self.channels, self.order),
            filters,
            tuple([kind for kinds in self.of_sums.operands for kind in kinds]),
            self.of_sums.made,
        )

    def program(
        self, steps: Function, packing: tc.KernelDefinition | None = None
    ) -> tc.ProgramDefinition:
        """steps(x, w, further, y) as a program, with the parameters that the problem has.

        packing  the kernel that makes of filters the w that the program takes, if it isn't these
        """
        filters = packing.made[0] if packing else self.types[1]
        weights = filters.as_given
        packs = {"w": packing or weights.shape} if packing or self.packed else None
        return self._defined(tc.program(packs=packs), steps, filters, is_given=True)

    def kernel(
        self, workers: int, blocks: Function, packing: tc.KernelDefinition | None = None
    ) -> tc.KernelDefinition:
        """blocks(x, w, further, y) as a kernel, with the parameters that the problem has.

        packing  the kernel that makes of filters the w that blocks take, if it isn't these
        """

        @tc.function
        def in_place(x: Value, w: Value, further: Values, y: Value) -> None:
            blocks(x, w, (*further, y), y)

        return self._defined(
            tc.kernel(workers=workers, packs={"w": packing} if packing else None),
            in_place if self.in_place else blocks,
            packing.made[0] if packing else self.types[1],
        )

    def _defined(
        self,
        decorate: Decorator[Made],
        run: Function,
        filters: TensorType,
        *,
        is_given: bool = False,
    ) -> Made:
        """run(x, w, further, y) as a kernel, or as a program, whose tensors have the axes that callers have."""
        images, _, _, results = self.types
        given, weights, made, offset, scale, residue = (
            tuple([kind.as_given for kind in kinds]) if is_given else kinds
            for kinds in ((images,), (filters,), (results,), *self.of_sums.operands)
        )
        role = tc.inout if self.in_place else tc.out

        @decorate
        def convolution(
            x: tc.typed[given[0]],
            w: tc.typed[weights[0]],
            offsets: tc.typed[offset],
            scales: tc.typed[scale],
            residual: tc.typed[() if self.in_place else residue],
            y: tc.typed[role[made[0]]],
        ) -> None:
            run(x, w, (*offsets, *scales, *residual), y)

        return convolution

    def of_packed(
        self, workers: int, blocks: Function, packing: tc.KernelDefinition
    ) -> tc.KernelDefinition | tc.ProgramDefinition:
        """That kernel; where filters come as they are, a program that packs them at each call."""
        kernel = self.kernel(workers, blocks, packing)

        def steps(x: Value, w: Value, further: Values, y: Value) -> None:
            kernel(x, packing(w), *further, y=y)

        return kernel if self.packed else self.program(steps)


def problem_of(
    images: Extent,
    extents: tuple[Extent, ...],
    channels: int,
    features: int,
    *,
    order: str,
    results: str | None = None,
    output_padding: int | tuple[int, ...] = 0,
    residual: bool = False,
    in_place: bool = False,
    **options: Any,
) -> Problem:
    """Check options and complete them, of images of one, two or three axes; the others are as in a `Problem`."""
    axes = len(extents)
    windows = Windows.of(axes, **{name: options.pop(name) for name in WINDOWS})
    more = along_axes(output_padding, axes, "output_padding")
    missing = 3 - axes
    depth, height, width = (1,) * missing + extents
    windows = windows.along(*(None,) * missing, *range(axes))
    deep, planes = windows.along(0), windows.along(1, 2)
    (size,), (stride,), (dilation,) = deep.size, deep.stride, deep.dilation
    last = more[0] if axes == 3 and options.get("transposed") else None
    slices = Slices(depth, size, stride, dilation, deep.before[0], deep.behind[0], last)
    options |= {"order": order, "results": results or order, "residual": residual or in_place}
    options |= {"extents": (height, width), "output_padding": (0, *more)[-2:], **planes.options}
    problem = Problem(
        images=images, channels=channels, features=features, in_place=in_place, axes=axes, slices=slices,
        **with_types(options),
    )  # fmt: skip
    problem.check()
    return problem
