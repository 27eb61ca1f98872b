"""The algorithms for pooling: `lines` and `planes` on processors, `boxes` on GPUs, `whole` images by a reduction.

Pooling of images of one axis, and of three: by that of two axes.

Images of one axis are images of one row. Of three axes the windows are folded slice by slice, and then along the
depth, by windows of a single column of all that lies in a slice; the average of averages is the average, since
what a window counts of its slices is the same for each of its rows and columns.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import taskc as tc
from taskc import KernelDefinition, Machine, Mapping, ProgramDefinition, TensorType
from taskc.kernels import reductions
from taskc.kernels.images import channels_of, check_orders, tiles_of_line
from taskc.kernels.pooling.plan import Boxes, Lines, Planes
from taskc.kernels.pooling.problem import Problem, problem_of
from taskc.kernels.reductions.problem import problem_of as folded
from taskc.kernels.signatures import Extent, Function, Value, Values, require_numbers, wide
from taskc.kernels.windows import Windows

# --- Pooling on processors of NHWC and NCHWc: lanes have channels, and a tile has neighbouring pixels of a line
#     own = repeat(pixels, vectors) * spatial(1, lanes)
#
# The columns that a tile's windows see are folded first, each down its window's rows, and then a window's columns. So
# neighbouring windows share what they have in common, and each number is read once. Nothing around an image is read:
# rows outside are left out, and the tiles of a line that reach over its ends are code of their own. Where the width
# is known only at a call, so are these tiles.


_UNROLLED = 4  # parts of a window, beyond which they are a loop


def lines(problem: Problem, plan: Lines) -> KernelDefinition:
    given, made, (rows, columns) = problem.given, problem.made, problem.outputs
    stored = channels_of(made, problem.results)
    tile = _tile(problem, plan)
    is_open = not isinstance(columns, int)  # known only at a call
    parts = () if is_open else tiles_of_line(columns, plan.pixels, problem.inside(1))

    @tc.function
    def line(x: Value, y: Value, image: Value, channel: Value, i: Value) -> None:
        if is_open:
            for j in range(0, columns, plan.pixels):
                for c in range(0, plan.channels, plan.wide):
                    if channel + c < stored:
                        tile(x, y, image, channel + c, i, j, plan.pixels, None)
        for part in tc.static(parts):
            for t in range(part.count):
                j = part.first + t * part.wide
                for c in range(0, plan.channels, plan.wide):
                    if channel + c < stored:
                        tile(x, y, image, channel + c, i, j, part.wide, part.is_inside)

    @tc.kernel(workers=plan.lanes)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        shape, by = (problem.images, stored, rows), (1, plan.channels, plan.lines)
        for image, channel, row in tc.tiles(shape, by=by):
            for r in range(plan.lines):
                if row + r < rows:
                    line(x, y, image, channel, row + r)

    return pool


def _tile(problem: Problem, plan: Lines) -> Function:
    wide, start, folded, finished = problem.wide, problem.start, problem.folded, problem.finished
    (_, across), (_, right) = problem.size, problem.stride
    output_at, stored = problem.output_at, channels_of(problem.made, problem.results)
    taps = min(across, plan.taps)
    fold_columns, apart = _fold_columns(problem, plan), problem.dilation[1] // plan.unit(problem)

    columns, width, left = problem.outputs[1], problem.extents[1], problem.padding[1]

    @tc.function
    def seen_columns(
        x: Value, seen: Value, folds: Mapping, image: Value,
        channel: Value, i: Value, j: Value, first: Value, is_inside: bool,
    ) -> None:  # fmt: skip
        """Fold the columns that a tile's windows see; that all are inside may be known only at a call (None)."""
        start = j * right + first * problem.dilation[1] - left
        if is_inside is not None:
            fold_columns(x, seen, folds, image, channel, i, j, first, is_inside)
        elif start >= 0 and start + (folds.shape[0] - 1) * plan.unit(problem) < width:
            fold_columns(x, seen, folds, image, channel, i, j, first, True)
        else:
            fold_columns(x, seen, folds, image, channel, i, j, first, False)

    @tc.function
    def fold(
        x: Value, found: Value, own: Mapping, image: Value,
        channel: Value, i: Value, j: Value, first: Value, is_first: bool, is_inside: bool,
    ) -> None:  # fmt: skip
        """Folds some columns of each window, from the tap `first` on."""
        pixels = own.shape[0]
        folds = plan.tile((pixels - 1) * right + (taps - 1) * apart + 1)
        seen = tc.tile(wide, folds, start)
        seen_columns(x, seen, folds, image, channel, i, j, first, is_inside)
        for p, o in own:
            value = seen[p * right, o]
            found[p, o] = value if is_first else folded(found[p, o], value)
        for s in range(1, taps):
            for p, o in own:
                found[p, o] = folded(found[p, o], seen[p * right + s * apart, o])

    @tc.function
    def tile(
        x: Value, y: Value, image: Value, channel: Value, i: Value, j: Value, pixels: int, is_inside: bool | None,
    ) -> None:  # fmt: skip
        own = plan.tile(pixels)
        found = tc.tile(wide, own, start)
        if across <= taps * _UNROLLED:
            for first in tc.static(range(0, across, taps)):
                fold(x, found, own, image, channel, i, j, first, first == 0, is_inside)
        else:
            for first in range(0, across, taps):
                fold(x, found, own, image, channel, i, j, first, False, is_inside)
        for p, o in own:
            if channel + o < stored and (is_inside is not None or j + p < columns):
                value = finished(found[p, o], i, j + p)
                is_one = channel + o < problem.channels
                y[output_at(image, i, j + p, channel + o)] = value if is_one else 0

    return tile


def _fold_columns(problem: Problem, plan: Lines) -> Function:
    (height, width), (taps, across) = problem.extents, problem.size
    (down, right), (step, apart) = problem.stride, problem.dilation
    (above, left), unit = problem.padding[:2], plan.unit(problem)
    wide, folded, image_at = problem.wide, problem.folded, problem.image_at
    given = channels_of(problem.given, problem.order)
    is_whole = across % min(across, plan.taps) == 0

    @tc.function
    def fold_row(
        x: Value, seen: Value, folds: Mapping, image: Value,
        channel: Value, i: Value, j: Value, r: Value, first: Value, is_inside: bool,
    ) -> None:  # fmt: skip
        h = i * down + r * step - above
        if 0 <= h < height:
            for q, o in folds:
                column = j * right + first * apart + q * unit - left
                is_there = (is_inside or 0 <= column < width) and channel + o < given
                if is_there and (is_whole or first + q < across):
                    value = x[image_at(image, h, column, channel + o)].to(wide)
                    seen[q, o] = value if r == 0 else folded(seen[q, o], value)

    @tc.function
    def fold_columns(
        x: Value, seen: Value, folds: Mapping, image: Value,
        channel: Value, i: Value, j: Value, first: Value, is_inside: bool,
    ) -> None:  # fmt: skip
        """Each column that the windows from j on see, from their tap `first` on."""
        fold_row(x, seen, folds, image, channel, i, j, 0, first, is_inside)
        for r in range(1, taps):
            fold_row(x, seen, folds, image, channel, i, j, r, first, is_inside)

    return fold_columns


# --- Pooling on processors of NCHW: lanes have neighbouring pixels of a channel's line ----------
# The rows of all windows are folded first, column by column, into lines in the block's memory, with what changes
# nothing at their ends in place of padding. The columns of each window are folded from there.


def planes(problem: Problem, plan: Planes) -> KernelDefinition:
    if plan.columns is not None:
        return _parts_of_lines(problem, plan)
    given, made, rows, own = problem.given, problem.made, problem.outputs[0], plan.own
    shape, length = (problem.images, problem.channels, rows), problem.seen(problem.outputs[1])
    fold_rows = _fold_rows(problem, plan)
    fold_columns = _fold_columns_of_plane(problem, plan, problem.outputs[1])

    @tc.kernel(workers=plan.lanes)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        for image, channel, row in tc.tiles(shape, by=(1, 1, plan.lines)):
            folds = tc.shared(problem.wide[plan.lines, length])
            for r in range(plan.lines):
                for q in range(0, length, own.shape[0]):
                    for (o,) in own:
                        if q + o < length:
                            folds[r, q + o] = problem.start
                if row + r < rows:
                    fold_rows(x, folds, r, image, channel, row + r)
            for r in range(plan.lines):
                if row + r < rows:
                    fold_columns(folds, r, y, image, channel, row + r, 0)

    return pool


def _parts_of_lines(problem: Problem, plan: Planes) -> KernelDefinition:
    """A block has a part of some lines, in the middle or at an end."""
    assert plan.columns is not None
    given, made, (rows, columns), own = problem.given, problem.made, problem.outputs, plan.own
    (height, width), (above, left) = problem.extents, problem.padding[:2]
    (down, right), step, length = problem.stride, problem.dilation[0], problem.seen(plan.columns)
    fold_columns = _fold_columns_of_plane(problem, plan, plan.columns)

    @tc.function
    def fold_rows(
        x: Value, folds: Value, line: Value, image: Value, channel: Value, i: Value, start: Value
    ) -> None:
        for q in range(0, length, own.shape[0]):
            found = tc.tile(problem.wide, own, problem.start)
            for r in range(problem.size[0]):
                h = i * down + r * step - above
                if 0 <= h < height:
                    for (o,) in own:
                        column = start + q + o
                        if 0 <= column < width:
                            value = x[image, channel, h, column].to(problem.wide)
                            found[o] = problem.folded(found[o], value)
            for (o,) in own:
                if q + o < length:
                    folds[line, q + o] = found[o]

    @tc.kernel(workers=plan.lanes)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        shape = problem.images, problem.channels, rows, columns
        for image, channel, row, j in tc.tiles(shape, by=(1, 1, plan.lines, plan.columns)):
            folds = tc.shared(problem.wide[plan.lines, length])
            for r in range(plan.lines):
                if row + r < rows:
                    fold_rows(x, folds, r, image, channel, row + r, j * right - left)
            for r in range(plan.lines):
                if row + r < rows:
                    fold_columns(folds, r, y, image, channel, row + r, j)

    return pool


def _fold_rows(problem: Problem, plan: Planes) -> Function:
    (height, width), above, left = problem.extents, problem.padding[0], problem.padding[1]
    down, step, own = problem.stride[0], problem.dilation[0], plan.own
    wide, start, folded = problem.wide, problem.start, problem.folded
    end = min(width, problem.seen(problem.outputs[1]) - left)  # of what windows see

    @tc.function
    def fold_rows(
        x: Value, folds: Value, line: Value, image: Value, channel: Value, i: Value
    ) -> None:
        for q in range(0, end, own.shape[0]):
            found = tc.tile(wide, own, start)
            for r in range(problem.size[0]):
                h = i * down + r * step - above
                if 0 <= h < height:
                    for (o,) in own:
                        if q + o < end:
                            found[o] = folded(found[o], x[image, channel, h, q + o].to(wide))
            for (o,) in own:
                if q + o < end:
                    folds[line, left + q + o] = found[o]

    return fold_rows


def _fold_columns_of_plane(problem: Problem, plan: Planes, columns: int) -> Function:
    """Of so many results of a line, from the first on."""
    whole, right, apart = problem.outputs[1], problem.stride[1], problem.dilation[1]
    wide, own, start = problem.wide, plan.own, problem.start
    folded, finished, output_at = problem.folded, problem.finished, problem.output_at

    @tc.function
    def fold_columns(
        folds: Value, line: Value, y: Value, image: Value, channel: Value, i: Value, first: Value
    ) -> None:
        for j in range(0, columns, own.shape[0]):
            found = tc.tile(wide, own, start)
            for s in range(problem.size[1]):
                for (o,) in own:
                    if j + o < columns:
                        found[o] = folded(found[o], folds[line, (j + o) * right + s * apart])
            for (o,) in own:
                at = first + j + o
                if j + o < columns and at < whole:
                    y[output_at(image, i, at, channel)] = finished(found[o], i, at)

    return fold_columns


# --- Pooling on GPUs, by boxes of results: neighbouring threads have what lies beside each other
# The taps of a small window are no loops, so that all are under way at the same time.

_FEW_TAPS = 9


def boxes(problem: Problem, plan: Boxes) -> KernelDefinition:
    given, made, own = problem.given, problem.made, plan.own
    (height, width), (taps, across) = problem.extents, problem.size
    (down, right), (step, apart) = problem.stride, problem.dilation
    above, left = problem.padding[:2]
    wide, start, folded, finished = problem.wide, problem.start, problem.folded, problem.finished
    image_at, whole, box = problem.image_at, made.shape, own.shape

    @tc.function
    def pixel(place: Values) -> Values:
        """Image, row, column and channel of a result."""
        n, a, b, c = place
        return (n, a, b, c) if problem.results == "NHWC" else (n, b, c, a)

    @tc.function
    def fold(x: Value, found: Value, first: Values, r: Value, s: Value) -> None:
        for (*at,) in own:
            place = tuple(first[axis] + at[axis] for axis in range(4))
            image, i, j, channel = pixel(place)
            h, column = i * down + r * step - above, j * right + s * apart - left
            is_there = all(place[axis] < whole[axis] for axis in range(4))
            if is_there and 0 <= h < height and 0 <= column < width:
                value = x[image_at(image, h, column, channel)].to(wide)
                found[at] = folded(found[at], value)

    @tc.kernel(workers=own.workers)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        for (*first,) in tc.tiles(whole, by=box):
            found = tc.tile(wide, own, start)
            if taps * across <= _FEW_TAPS:
                for r in tc.static(range(taps)):
                    for s in tc.static(range(across)):
                        fold(x, found, first, r, s)
            else:
                for r in range(taps):
                    for s in range(across):
                        fold(x, found, first, r, s)
            for (*at,) in own:
                place = tuple(first[axis] + at[axis] for axis in range(4))
                if all(place[axis] < whole[axis] for axis in range(4)):
                    _, i, j, _ = pixel(place)
                    y[place] = finished(found[at], i, j)

    return pool


# --- Pooling of whole images: a reduction of rows and columns -----------------------------------


def whole(problem: Problem, machine: Machine) -> KernelDefinition | ProgramDefinition:
    """Of NHWC and NCHW. What is left of them, one pixel, lies the same in both."""
    operator = "mean" if problem.operator == "average" else problem.operator
    axes = problem.order.index("H"), problem.order.index("W")
    fold = folded(operator, problem.given.shape, axes, problem.dtype, keepdims=True)
    made = problem.made.reshape(*fold.made.shape)
    return reductions.build(replace(fold, made=made), None, machine)


Build = Any  # makes a kernel of a problem


def of_one_axis(
    build: Build, *, width: Extent, windows: Windows, machine: Machine, **options: Any
) -> ProgramDefinition:
    """x[images, width, channels], or [images, channels, width]."""
    problem = problem_of(extents=(1, width), windows=windows.along(None, 0), **options)
    pool = build(problem, None, machine)
    given, made = (_without_height(kind, problem.order) for kind in (problem.given, problem.made))

    @tc.program
    def pool_1d(x: tc.typed[given], y: tc.out[made]) -> None:
        pool(x.reshape(*problem.given.shape), out=y.reshape(*problem.made.shape))

    return pool_1d


def _without_height(kind: TensorType, order: str) -> TensorType:
    place = order.index("H")
    return TensorType(kind.dtype, (*kind.shape[:place], *kind.shape[place + 1 :]))


def of_three_axes(
    build: Build, *, images: Extent, depth: int, height: int, width: int, channels: int,
    windows: Windows, order: str, machine: Machine, **options: Any,
) -> ProgramDefinition:  # fmt: skip
    """x[images, depth, height, width, channels], or [images, channels, depth, height, width]."""
    check_orders(order)
    require_numbers("pooling", depth=depth, height=height, width=width, channels=channels)
    is_nhwc = order == "NHWC"
    lines, rest = (images, channels) if is_nhwc else (images * channels, 1)
    planes, dtype = windows.along(1, 2), options["dtype"]
    of_slices = problem_of(
        images=lines * depth, extents=(height, width), channels=rest, windows=planes, order=order,
        **options,
    )  # fmt: skip
    rows, columns = (int(extent) for extent in of_slices.outputs)
    of_depth = problem_of(
        images=lines, extents=(depth, 1), channels=rows * columns * rest, windows=windows.along(0, None),
        order="NHWC", **options,
    )  # fmt: skip
    is_flat = not (prod(planes.size) * prod(planes.stride) > 1 or any(planes.padding))
    total = wide(dtype)
    if options["operator"] != "max" and not is_flat and total is not dtype:  # rounded once
        of_slices = replace(of_slices, result=total)
        of_depth = replace(of_depth, dtype=total, result=dtype)
    by_slices, by_depth = (build(part, None, machine) for part in (of_slices, of_depth))
    results = int(of_depth.outputs[0]), rows, columns
    given, made = (
        TensorType(dtype, (images, *axes, channels) if is_nhwc else (images, channels, *axes))
        for axes in ((depth, height, width), results)
    )

    @tc.program
    def pool_3d(x: tc.typed[given], y: tc.out[made]) -> None:
        slices = x if is_flat else by_slices(x.reshape(*of_slices.given.shape))
        by_depth(slices.reshape(*of_depth.given.shape), out=y.reshape(*of_depth.made.shape))

    return pool_3d
