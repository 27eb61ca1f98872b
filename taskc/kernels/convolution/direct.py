"""Direct convolutions on processors: a tile of neighbouring pixels of a row by vectors of features stays in registers.

    own = repeat(pixels, vectors) * spatial(1, lanes)

A step, of one channel and one tap, is `vectors` loads of filters, `pixels` numbers of the image, each the same for
all lanes, and a fused multiply-add for each of their pairs. So images may lie in any order, results with their features
beside each other; filters are packed in the order in which tiles read them. Zeros around an image are never read: the
tiles of a row that reach over its ends are code of their own. Where a filter covers one pixel, all rows of an
image may be one line. Where the width is known only at a call, so are these tiles: what lies inside of them goes by few
pixels, tap by tap.

From the sums of a tile of pixels by features to results, stored where they belong.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, Mapping, TensorType, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.convolution.plan import Direct
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.images import Tiles, results_inside, tiles_of_line
from taskc.kernels.signatures import Extent, Function, Value, Values


def in_lines(flat: bool, at: Function, width: Extent) -> Function:
    """Indices by `at`, from those of lines: `width` is a row's, and where rows are one line they are `flat`."""

    @tc.function
    def in_lines(image: Value, i: Value, j: Value, channel: Value) -> Any:
        if flat:
            return at(image, j // width, j % width, channel)
        else:
            return at(image, i, j, channel)

    return in_lines


def store_of(problem: Problem, flat: bool, *, overhang: bool = False) -> Function:
    """Features lie along the lanes of sums. Where pixels do so in memory, tiles are turned first.

    overhang  a line's last tile may have more pixels than are left
    """
    features, epilogue = problem.features, problem.epilogue
    stored = problem.stored_features
    output_at = in_lines(flat, problem.output_at, problem.outputs[1])

    (height, width), spread = problem.outputs, problem.spread[1]
    across = problem.slices.outputs * height * width if flat else width
    # Else a phase may have a column less than another.
    is_even = not overhang and across % spread == 0

    @tc.function
    def store(
        y: Value, acc: Value, own: Mapping, further: Values, place: Values, phase: Value
    ) -> None:
        image, f, i, j = place
        for p, o in own:
            column = (j + p) * spread + phase
            if f + o < stored and (is_even or column < across):
                at = output_at(image, i, column, f + o)
                value = problem.result(0)
                if f + o < features:
                    value = epilogue(acc[p, o], further, f + o, at)
                y[at] = value

    @tc.function
    def store_turned(
        y: Value, acc: Value, own: Mapping, further: Values, place: Values, phase: Value
    ) -> None:
        image, f, i, j = place
        beside = _turned(own)
        # Lanes behind the last pixel compute the epilogue, too. Of what registers happened to hold a sigmoid took six
        # times as long there as of zeros: probably of subnormal numbers.
        turned = tc.tile(problem.total, beside, 0)
        tc.copy(turned, acc)
        for p, o in beside:
            column = (j + p) * spread + phase
            if f + o < features and (is_even or column < across):
                at = output_at(image, i, column, f + o)
                y[at] = epilogue(turned[p, o], further, f + o, at)

    return store_turned if problem.results == "NCHW" else store


def _turned(own: Mapping) -> Mapping:
    """The owners of a tile with its pixels along the lanes."""
    (pixels, features), lanes = own.shape, own.workers
    turned = repeat(ceil(pixels / lanes), features) * spatial(lanes, 1)
    return turned.within((pixels, features)) if pixels % lanes else turned


_FEW = 2  # pixels of an edge, whose taps are inside together or are looked at one by one


@dataclass(frozen=True, slots=True)
class _Part:
    """Tiles of a line that are alike.

    taps    columns of the filter, each with how far it moves a pixel's column in the image
    phase   of every `spread`-th result, the first
    before  tiles of other phases before these
    is_open   which taps lie in the image is known only at a call, or differs from tile to tile
    """

    tiles: Tiles
    taps: tuple[tuple[int, int], ...]
    phase: int = 0
    before: int = 0
    is_open: bool = False

    @property
    def inside(self) -> _Part:
        """The same of tiles whose taps all lie in the image."""
        return replace(self, tiles=replace(self.tiles, is_inside=True))


def packed_type(problem: Problem, plan: Direct) -> TensorType:
    """Filters [features, channels, rows, columns] in the order in which a tile reads them; what fills up is zeros."""
    wide, near = plan.wide, plan.near
    blocks, steps = max(1, ceil(problem.features / wide)), plan.channels_of(problem) // near
    layout = repeat(blocks, steps, 1, 1) * repeat(
        1, 1, problem.slices.size * problem.size[0], problem.size[1]
    )
    layout *= repeat(1, near, 1, 1) * repeat(wide, 1, 1, 1)
    return problem.right[layout.shape].laid(layout)


def direct(problem: Problem, plan: Direct) -> tc.KernelDefinition | tc.ProgramDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the convolution: {misfit}", hint=str(plan))
    if plan.flat and not problem.is_sized:
        problem = problem.in_one_line
    lines, columns = plan.result_lines(problem)
    tile, channels = _tile(problem, plan), plan.channels_of(problem)
    features, parts = problem.stored_features, _parts(problem, plan)
    tiles = sum(part.tiles.count for part in parts)
    rows = plan.features // plan.wide
    waiting = plan.lines * rows * tiles if plan.depth < channels else 0

    @tc.function
    def line(operands: Values, sums: Value, place: Values, slot: Value, c: Value) -> None:
        """The tiles of a block in a line."""
        image, f, i, j = place
        for part in tc.static(parts):
            for t in range(part.tiles.count):
                at = j + part.tiles.first + t * part.tiles.wide
                number = slot + part.before + part.tiles.number + t
                if at < columns:
                    tile(operands, sums, (image, f, i, at), number, c, part)

    @tc.function
    def block(operands: Values, image: Value, feature: Value, i: Value, j: Value) -> None:
        sums = tc.shared(problem.total[waiting, plan.pixels, plan.wide]) if waiting else None
        for c in range(0, channels, plan.depth):
            for r in range(plan.lines):
                if i + r < lines:
                    for f in range(0, plan.features, plan.wide):
                        if feature + f < features:
                            slot = (r * rows + f // plan.wide) * tiles
                            line(operands, sums, (image, feature + f, i + r, j), slot, c)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        shape = problem.images, features, lines, columns
        by = 1, plan.features, plan.lines, plan.columns
        for image, feature, i, j in tc.tiles(shape, by=by, order=plan.order):
            block((x, w, further, y), image, feature, i, j)

    return problem.of_packed(plan.lanes, blocks, pack_filters(problem, plan))


def pack_filters(problem: Problem, plan: Direct) -> tc.KernelDefinition:
    """Puts filters into the order in which tiles read them."""
    given, made, lanes = problem.types[1], packed_type(problem, plan), plan.lanes
    filter_at, features, channels = problem.filter_at, problem.features, problem.group_channels
    whole = made.shape[0], plan.channels_of(problem)

    @tc.kernel(workers=lanes)
    def pack_filters(w: tc.typed[given], packed: tc.out[made]) -> None:
        for f, c in tc.tiles(whole, by=(lanes, plan.near)):
            for q in range(plan.near):
                for r in range(made.shape[2]):
                    for s in range(made.shape[3]):
                        for o in spatial(lanes):
                            value = problem.right(0)
                            if f + o < features and c + q < channels:
                                value = w[filter_at(f + o, r, s, c + q)]
                            packed[f + o, c + q, r, s] = value

    return pack_filters


def _parts(problem: Problem, plan: Direct) -> tuple[_Part, ...]:
    """The tiles of a block's part of a line."""
    columns, (_, width) = plan.result_lines(problem)[1], plan.lines_of(problem)
    is_open = not isinstance(columns, int)
    if plan.flat or is_open:
        taps = ((0, 0),) if plan.flat else tuple(problem.taps_of(0))
        tiles = Tiles(0, ceil(plan.columns / plan.pixels), 0, plan.pixels, not is_open)
        return (_Part(tiles, taps, is_open=is_open),)
    step, found = 1 if problem.transposed else problem.stride[1], []
    for phase in range(problem.spread[1]):
        taps = tuple(problem.taps_of(phase))
        offsets = [offset for _, offset in taps] or [0]

        before = phase * ceil(columns / plan.pixels)
        inside = results_inside(width, step, min(offsets), max(offsets))
        for tiles in tiles_of_line(columns, plan.pixels, inside):
            are_many = tiles.count > 1 and not tiles.is_inside
            found.append(_Part(tiles, taps, phase, before, is_open=are_many))
    return tuple(found)


def _are_rows_apart(problem: Problem, plan: Direct) -> bool:
    """A line of the plan is rows that images have one by one."""
    return plan.flat and problem.axes_given is None


def _tile(problem: Problem, plan: Direct) -> Function:
    """The body of a block for one tile, with the channels from c on."""
    total, channels = problem.total, plan.channels_of(problem)
    is_open = not isinstance(plan.result_lines(problem)[1], int)
    summed = _summed(problem, plan)
    store = store_of(problem, _are_rows_apart(problem, plan), overhang=is_open)
    # Blocks of NCHWc may be wider than a tile, and whole tiles of the last one have no feature: only zeros are stored.
    features = ceil(problem.features / plan.wide) * plan.wide
    has_empty = problem.stored_features > features

    @tc.function
    def sum_up(x: Value, w: Value, acc: Value, place: Values, c: Value, part: _Part) -> None:
        if has_empty:
            if place[1] < features:
                summed((x, w, acc), place, c, part)
        else:
            summed((x, w, acc), place, c, part)

    @tc.function
    def tile(
        operands: Values, sums: Value, place: Values, slot: Value, c: Value, part: _Part
    ) -> None:
        x, w, further, y = operands
        own = plan.tile(part.tiles.wide)
        acc = tc.tile(total, own, 0)
        if sums is None:
            sum_up(x, w, acc, place, c, part)
            store(y, acc, own, further, place, part.phase)
        else:
            if c > 0:
                for p, o in own:
                    acc[p, o] = sums[slot, p, o]
            sum_up(x, w, acc, place, c, part)
            if c + plan.depth < channels:
                for p, o in own:
                    sums[slot, p, o] = acc[p, o]
            else:
                store(y, acc, own, further, place, part.phase)

    return tile


def _across_channels(problem: Problem, plan: Direct) -> Function:
    """Add the products of a tap and the channels of a step to the sums of a tile, or of `count` of its pixels."""
    total, near, step = problem.total, plan.near, 1 if problem.transposed else problem.stride[1]
    image_at = in_lines(_are_rows_apart(problem, plan), problem.image_at, problem.extents[1])
    width = plan.lines_of(problem)[1]
    group_features, group_channels = problem.group_features, problem.group_channels
    # Features of a tile are of one group, or some of them of none.
    is_alike = problem.groups == 1 or group_features % plan.wide == 0
    is_whole = problem.features % plan.wide == 0

    @tc.function
    def add(
        operands: Values, place: Values, h: Value, tap: Value, offset: Value, c: Value, pixels: tuple[int, int, bool],
    ) -> None:  # fmt: skip
        """One channel and tap."""
        x, w, acc = operands
        image, f, r, j = place
        first, count, is_inside = pixels
        for p, o in plan.tile(count):
            column = (j + first + p) * step + offset
            is_own = is_alike or is_whole or f + o < problem.features
            if (is_inside or 0 <= column < width) and is_own:
                group = (f if is_alike else f + o) // group_features
                number = x[image_at(image, h, column, group * group_channels + c)].to(total)
                acc[first + p, o] += number * w[f + o, c, r, tap].to(total)

    @tc.function
    def of_pixels(
        operands: Values,
        place: Values,
        h: Value,
        tap: Value,
        offset: Value,
        first: Value,
        pixels: tuple[int, int, bool],
    ) -> None:
        """All channels of a step; `pixels` are the first one, how many, and whether the tap is inside for all."""
        if is_alike:
            for c in range(near):
                add(operands, place, h, tap, offset, first + c, pixels)
        else:
            # Constants, so that it is known which of a few neighbours each lane takes.
            for c in tc.static(range(near)):
                add(operands, place, h, tap, offset, first + c, pixels)

    @tc.function
    def of_edge(
        operands: Values, place: Values, h: Value, tap: Value, offset: Value, c: Value, wide: int,
    ) -> None:  # fmt: skip
        """Add to the pixels whose tap is inside: to a few at once, or else one by one."""
        column = place[3] * step + offset
        for first in tc.static(range(0, wide, _FEW)):
            few = min(_FEW, wide - first)
            if column + first * step >= 0 and column + (first + few - 1) * step < width:
                of_pixels(operands, place, h, tap, offset, c, (first, few, True))
            elif few > 1:
                for p in tc.static(range(first, first + few)):
                    if 0 <= column + p * step < width:
                        of_pixels(operands, place, h, tap, offset, c, (p, 1, True))

    @tc.function
    def across_channels(
        operands: Values, place: Values, h: Value, tap: Value, offset: Value, c: Value, part: _Part,
    ) -> None:  # fmt: skip
        wide, is_inside = part.tiles.wide, part.tiles.is_inside
        if part.is_open and not is_inside:
            of_edge(operands, place, h, tap, offset, c, wide)
        else:
            of_pixels(operands, place, h, tap, offset, c, (0, wide, is_inside))

    return across_channels


def _summed(problem: Problem, plan: Direct) -> Function:
    near, height, slices = plan.near, problem.extents[0], problem.slices
    step, width = 1 if problem.transposed else problem.stride[1], plan.lines_of(problem)[1]
    rows, result_rows = problem.size[0], problem.outputs[0]
    steps = ceil(min(plan.depth, problem.group_channels) / near)
    across_channels = _across_channels(problem, plan)

    def loops(part: _Part) -> list[tuple[tuple[int, int], ...]]:
        """The taps of a tile; neighbours whose code is the same for all pixels are together."""
        first, last = part.tiles.first * step, (part.tiles.first + part.tiles.wide - 1) * step

        def alone(tap: tuple[int, int]) -> int | None:
            number, offset = tap
            if problem.transposed:
                return number
            if part.is_open or part.tiles.is_inside:
                return None
            # With one channel a step, a loop would cost as much as the products in it.
            return None if near > 1 and first + offset >= 0 and last + offset < width else number

        return [tuple(taps) for _, taps in groupby(part.taps, alone)]

    @tc.function
    def across_columns(
        operands: Values, place: Values, h: Value, first: Value, part: _Part
    ) -> None:
        for taps in tc.static(loops(part)):
            if len(taps) == 1:
                for tap, offset in tc.static(taps):
                    across_channels(operands, place, h, tap, offset, first, part)
            else:
                alike = tc.static(part if part.is_open else part.inside)
                for tap in range(taps[0][0], taps[-1][0] + 1):
                    offset = tap * problem.dilation[1] - problem.padding[1]
                    across_channels(operands, place, h, tap, offset, first, alike)

    @tc.function
    def across_rows(
        operands: Values, place: Values, depth: Value, tap: Value, first: Value, part: _Part,
    ) -> None:  # fmt: skip
        """The taps of one slice of filters, in the slice `depth` of the image."""
        image, f, i, j = place
        for r in range(rows):
            if problem.transposed:
                back = i + problem.padding[0] - r * problem.dilation[0]
                h = back // problem.stride[0]
                if back % problem.stride[0] == 0 and 0 <= h < height:
                    across_columns(operands, (image, f, tap + r, j), depth + h, first, part)
            else:
                h = i * problem.stride[0] + r * problem.dilation[0] - problem.padding[0]
                if 0 <= h < height:
                    across_columns(operands, (image, f, tap + r, j), depth + h, first, part)

    @tc.function
    def across_depth(operands: Values, place: Values, first: Value, part: _Part) -> None:
        image, f, i, j = place
        for q in range(steps):
            if problem.axes < 3:
                across_rows(operands, place, 0, 0, first + q * near, part)
            else:
                row = image, f, i % result_rows, j
                for d in range(slices.size):
                    if problem.transposed:
                        back = i // result_rows + slices.front - d * slices.dilation
                        s = back // slices.stride
                        if back % slices.stride == 0 and 0 <= s < slices.extent:
                            at = first + q * near
                            across_rows(operands, row, s * height, d * rows, at, part)
                    else:
                        s = i // result_rows * slices.stride + d * slices.dilation - slices.front
                        if 0 <= s < slices.extent:
                            at = first + q * near
                            across_rows(operands, row, s * height, d * rows, at, part)

    @tc.function
    def summed(operands: Values, place: Values, first: Value, part: _Part) -> None:
        if part.is_open:
            offsets = tc.static([offset for _, offset in part.taps])
            left = place[3] * step + min(offsets)
            right = (place[3] + part.tiles.wide - 1) * step + max(offsets)
            if left >= 0 and right < width:
                across_depth(operands, place, first, tc.static(part.inside))
            else:
                across_depth(operands, place, first, part)
        else:
            across_depth(operands, place, first, part)

    return summed
