"""Pixels of images as bulk copies take them (TMA's im2col): those under one tap of a filter, for consecutive results.

    x[(row + i) // 196, (row + i) // 14 % 14 * 2 + p // 192 - 1, (row + i) % 14 * 2 + p // 64 % 3 - 1, q]

for (i, q) in (128, 64) is, for 128 results from number `row` on, of 14 rows by 14 columns, the pixel under the
tap in row p // 192 and column p // 64 % 3 of their filter, where filters are 2 pixels apart, and the first
begins 1 above and 1 left of the image. The copy counts columns, rows and images by itself; pixels outside
the image arrive as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskc.analysis.facts import Facts
from taskc.analysis.sums import addends
from taskc.analysis.widths import divisor, unit_stride
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.build import ZERO, add, floor_divide, modulo, multiply, subtract, total
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import substitute, walk

# Limits of a map of pixels: offset of a tap from its filter's first, padding around an image, distance of filters.
MOST_OFFSET, MOST_PADDING, MOST_STRIDE = 255, 128, 8


@dataclass(frozen=True, slots=True)
class Pixels:
    """Pairs are of rows and columns.

    first    position of the first result's filter: image, row, column, and the first channel
    offsets  of the tap in the filter
    outputs  results of an image
    strides  of the filter
    padding  above and left of an image, where the first filter begins
    """

    first: tuple[Expression, ...]
    offsets: tuple[Expression, Expression]
    outputs: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that are the same for all copies."""
        return *self.outputs, *self.strides, *self.padding


@dataclass(frozen=True, slots=True)
class _PixelIndex:
    """An index along rows or columns: digit * stride + rest; the digit is number // weight % extent.

    Without an extent it is number // weight, as it is of the rows of a single image.
    """

    number: Expression
    weight: int
    extent: int | None
    stride: int
    rest: Expression

    @property
    def padding(self) -> int:
        return max(0, -_constant(self.rest))

    @property
    def offset(self) -> Expression:
        return add(self.rest, self.padding)


def pixels_of(move: ir.Move, distant: ir.Read | ir.Address, known: Facts) -> Pixels | None:
    """The pixels that a move to shared memory takes from `distant`, if it has that form."""
    shape = distant.tensor.shape
    if (
        len(move.variables) != 2
        or len(shape) != 4
        or not all(isinstance(n, int) for n in shape[1:])
    ):
        return None
    along, channel = move.variables
    image, row, column, last = distant.indices
    if not unit_stride(last, channel, known) or any(along is node for node in walk(last)):
        return None
    if any(channel is node for part in (image, row, column) for node in walk(part)):
        return None
    places = _places(row, column, along)
    if places is None:
        return None
    row_digit, column_digit = places
    number, zero = column_digit.number, {along: ZERO}
    steps = (
        row_digit.weight == column_digit.extent,
        constant_difference(row_digit.number, number) == 0,
    )
    if not (unit_stride(number, along, known) and column_digit.weight == 1 and all(steps)):
        return None
    start = substitute(number, zero)
    if row_digit.extent is None:
        # There is nothing after the only image's last row.
        if shape[0] != 1 or any(node is along for node in walk(image)):
            return None
        most_rows = int(shape[1]) - 1 + MOST_PADDING - 1  # type: ignore[arg-type]
        row_digit = replace(
            row_digit, extent=(most_rows + row_digit.padding) // row_digit.stride + 1
        )
    else:
        pixels = floor_divide(number, row_digit.weight * row_digit.extent)
        if constant_difference(image, pixels) != 0 and not (
            constant_difference(image, substitute(pixels, zero)) == 0
            and _lie_between(start, move.shape[0], row_digit.weight * row_digit.extent, known)
        ):
            return None
    both = row_digit, column_digit
    rows, columns = (
        subtract(
            multiply(modulo(floor_divide(start, p.weight), p.extent or 1), p.stride), p.padding
        )
        for p in both
    )
    first = substitute(image, zero), rows, columns, substitute(last, {channel: ZERO})
    return Pixels(
        first,
        (row_digit.offset, column_digit.offset),
        (int(row_digit.extent or 1), int(column_digit.extent or 1)),
        (row_digit.stride, column_digit.stride),
        (row_digit.padding, column_digit.padding),
    )


def corners(pixels: Pixels, extents: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The positions of filters: the first one's row and column, and the last one's, relative to the last pixel."""
    both = zip(pixels.padding, pixels.outputs, pixels.strides, extents, strict=True)
    beyond = [(count - 1) * step - before - (n - 1) for before, count, step, n in both]
    return (-pixels.padding[0], -pixels.padding[1]), (beyond[0], beyond[1])


def misplaced(pixels: Pixels, distant: ir.Read, known: Facts) -> str | None:
    """The first of a bulk copy's numbers that is too large, as a message; or None."""
    height, width = (int(n) for n in distant.tensor.shape[1:3])  # type: ignore[arg-type]
    if any(
        not -MOST_PADDING <= n < MOST_PADDING for c in corners(pixels, (height, width)) for n in c
    ):
        return f"begins or ends more than {MOST_PADDING} pixels beyond its images"
    if max(pixels.strides) > MOST_STRIDE:
        return f"has filters more than {MOST_STRIDE} pixels apart"
    for offset in pixels.offsets:
        interval = known.interval(offset)
        if interval.low is None or interval.low < 0:
            return "may have taps in front of its filter"
        if interval.high is None or interval.high > MOST_OFFSET:
            return f"may have taps more than {MOST_OFFSET} pixels behind its filter's first"
    return None


def _lie_between(start: Expression, count: int, multiple: int, known: Facts) -> bool:
    """Whether so many numbers from `start` on are between two multiples of a number."""
    step = divisor(start, known)
    return step % count == 0 and multiple % count == 0


def _places(
    row: Expression, column: Expression, along: Variable
) -> tuple[_PixelIndex, _PixelIndex] | None:
    column_digit = _place(column, along)
    if column_digit is None or column_digit.extent is None:
        return None
    row_digit = _place(row, along)
    if row_digit is None and not any(node is along for node in walk(row)):
        # One row of results: the next one is the next image's.
        row_digit = _PixelIndex(column_digit.number, column_digit.extent, 1, 1, row)
    return None if row_digit is None else (row_digit, column_digit)


def _place(position: Expression, along: Variable) -> _PixelIndex | None:
    """The index as a digit of a number that `along` counts up, and the rest."""
    terms = addends(position)
    varying = [term for term in terms if any(node is along for node in walk(term[0]))]
    if len(varying) != 1 or varying[0][1] < 1:
        return None
    ((digit, stride),) = varying
    remainder = total(multiply(term, times) for term, times in terms if term is not digit)
    match digit:
        case ir.Binary(operator="%", left=number, right=ir.Constant(value=int(extent))):
            weight = 1
            match number:
                case ir.Binary(operator="//", left=inner, right=ir.Constant(value=int(weight))):
                    number = inner
            return _PixelIndex(number, weight, extent, stride, remainder)
        case ir.Binary(operator="//", left=number, right=ir.Constant(value=int(weight))):
            return _PixelIndex(number, weight, None, stride, remainder)
    return None


def _constant(rest: Expression) -> int:
    return sum(int(n.value) * times for n, times in addends(rest) if isinstance(n, ir.Constant))
