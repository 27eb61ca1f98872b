"""Convolutions of 8- and 16-bit numbers on processors, by the instruction that the machine has for them.

A block copies what it sees of an image, with the zeros beside it, so that a tile's pixels lie at one distance: for each
line of the image and each `near` channels, columns of one phase of the stride beside each other. So for a tap and
`near` channels a tile of a line's pixels by features is one `tc.mma`, of a part of the copy by a part of the filters,
which are packed in the order in which tiles read them.

Where channels are few, all taps of a filter's row may be channels of one tap (`joined`): less fills up packs then.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, Mapping, TensorType, repeat, spatial
from taskc.kernels.convolution.direct import in_lines, store_of
from taskc.kernels.convolution.plan_packs import Packs
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.images import Tiles, results_inside, tiles_of_line
from taskc.kernels.signatures import Function, Value, Values


def packed_type(problem: Problem, plan: Packs) -> TensorType:
    """Filters [rows, columns, channels, features]: panels of a tile's features, packs of channels; zeros fill up."""
    panels = max(1, ceil(problem.features / plan.wide))
    rows, columns = plan.size_of(problem)
    channels = plan.steps_of(problem) * plan.near
    layout = repeat(1, 1, 1, panels) * repeat(rows, columns, channels // plan.pack, plan.wide)
    layout *= repeat(1, 1, plan.pack, 1)
    return plan.types_of(problem)[1][layout.shape].laid(layout)


def packs(problem: Problem, plan: Packs) -> tc.KernelDefinition | tc.ProgramDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the convolution: {misfit}", hint=str(plan))
    lines, columns = plan.result_lines(problem)
    seen, copy, held = plan.seen(problem), _copy(problem, plan), plan.types_of(problem)[0]
    group_features, group_channels = max(1, problem.group_features), problem.group_channels
    parts = tiles_of_line(plan.columns, plan.pixels, range(plan.columns))
    sum_up, down = _sum_up(problem, plan), problem.stride[0] // seen.down
    overhang = plan.is_of_tile_registers or (plan.flat and columns % plan.pixels > 0)
    store = store_of(problem, plan.flat, overhang=overhang)

    @tc.function
    def line(x: Value, w: Value, further: Values, y: Value, place: Values, r: Value) -> None:
        image, f, i, j = place
        for part in tc.static(parts):
            own = plan.tile(part.wide)
            for t in range(part.count):
                at = part.first + t * part.wide
                if j + at < columns:
                    acc = tc.tile(problem.total, own, 0)
                    sum_up(x, w, acc, (f, i), (r, at))
                    store(y, acc, own, further, (image, f, i, j + at), 0)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        shape = problem.images, problem.stored_features, lines, columns
        by = 1, plan.features, plan.lines, plan.columns
        for image, feature, i, j in tc.tiles(shape, by=by, order=plan.order):
            copied = tc.shared(held[seen.shape])
            copy(x, copied, (image, feature // group_features * group_channels, i, j))
            for f in range(0, plan.features, plan.wide):
                if feature + f < problem.stored_features:
                    for r in range(plan.lines):
                        if i + r < lines:
                            place = image, feature + f, i + r, j
                            line(copied, w, further, y, place, r * down)

    return problem.of_packed(plan.lanes, blocks, pack_filters(problem, plan))


def pack_filters(problem: Problem, plan: Packs) -> tc.KernelDefinition:
    """Puts filters into the order in which tiles read them."""
    given, made, lanes = problem.types[1], packed_type(problem, plan), plan.lanes
    filter_at, features, channels = problem.filter_at, problem.features, plan.channels_of(problem)
    rows, columns, *whole = made.shape

    @tc.kernel(workers=lanes)
    def pack_filters(w: tc.typed[given], packed: tc.out[made]) -> None:
        for c, f in tc.tiles(whole, by=(plan.pack, lanes)):
            for r in range(rows):
                for s in range(columns):
                    for q in range(plan.pack):
                        for o in spatial(lanes):
                            value = made.dtype(0)
                            if f + o < features and c + q < channels:
                                tap, channel = _tap_of(problem, plan, s, c + q)
                                value = w[filter_at(f + o, r, tap, channel)].to(made.dtype)
                            packed[r, s, c + q, f + o] = value

    return pack_filters


def _sum_up(problem: Problem, plan: Packs) -> Function:
    """Adds the products of a tile to its sums: of the line i, and `at` a line and a column of the block's copy."""
    seen, near, steps = plan.seen(problem), plan.near, plan.steps_of(problem)
    (rows, columns), dilation, stride = plan.size_of(problem), problem.dilation, problem.stride
    is_surrounded = problem.around != 0
    high, above = plan.lines_of(problem)[0], problem.padding[0]

    @tc.function
    def row(x: Value, w: Value, acc: Value, f: Value, r: Value, line: Value, column: Value) -> None:
        """The taps of a filter's row."""
        pixels, wide = acc.shape
        for s in range(columns):
            phase = s * dilation[1] % stride[1] // seen.across
            first = column + s * dilation[1] // stride[1]
            for step in range(steps):
                c = step * near
                tc.mma(
                    acc,
                    x[line, step, phase, first : first + pixels, 0:near],
                    w[r, s, c : c + near, f : f + wide],
                )

    @tc.function
    def sum_up(x: Value, w: Value, acc: Value, place: Values, at: Values) -> None:
        f, i = place
        for r in range(rows):
            if is_surrounded or 0 <= i * stride[0] + r * dilation[0] - above < high:
                row(x, w, acc, f, r, at[0] + r * dilation[0] // seen.down, at[1])

    return sum_up


@tc.function
def _tap_of(problem: Problem, plan: Packs, tap: Value, channel: Value) -> Values:
    """The tap of a row and the channel, of those of the plan: joined ones are in the order of an image's numbers."""
    if not plan.joined:
        return tap, channel
    elif problem.is_nhwc:
        return channel // problem.group_channels, channel % problem.group_channels
    else:
        return channel % problem.size[1], channel // problem.size[1]


def _copy(problem: Problem, plan: Packs) -> Function:
    """Copies the lines that a block sees of an image, and what lies around it, which fills up the last step, too."""
    (lines, steps, phases, columns, near), high = (
        plan.seen(problem).shape,
        plan.lines_of(problem)[0],
    )
    seen, own, around = plan.seen(problem), _lanes(near, plan), _around(problem, plan)
    is_surrounded = problem.around != 0
    line = _joined_line(problem, plan) if plan.joined else _line(problem, plan)

    @tc.function
    def copy(x: Value, copied: Value, place: Values) -> None:
        image, channel, i, j = place
        for r in range(lines):
            h = i * problem.stride[0] + r * seen.down - problem.padding[0]
            if 0 <= h < high:
                line(x, copied, (image, channel, h, j), r)
            elif is_surrounded:
                for step in range(steps):
                    for phase in range(phases):
                        for p in range(columns):
                            for q in own:
                                copied[r, step, phase, p, q] = around

    return copy


def _line(problem: Problem, plan: Packs) -> Function:
    """Copies the columns of each phase, with their channels beside each other."""
    seen, near, channels = plan.seen(problem), plan.near, problem.group_channels
    _, steps, phases, columns, _ = seen.shape
    wide, left = plan.lines_of(problem)[1], problem.padding[1]
    image_at = in_lines(plan.flat, problem.image_at, problem.extents[1])
    own, around = _lanes(near, plan), _around(problem, plan)
    held = plan.types_of(problem)[0]

    @tc.function
    def line(x: Value, copied: Value, place: Values, r: Value) -> None:
        image, channel, h, j = place
        for step in range(steps):
            for phase in range(phases):
                for p in range(columns):
                    column = (j + p) * problem.stride[1] + phase * seen.across - left
                    for q in own:
                        c = step * near + q
                        value = around
                        if 0 <= column < wide and c < channels:
                            value = x[image_at(image, h, column, channel + c)].to(held)
                        copied[r, step, phase, p, q] = value

    return line


def _joined_line(problem: Problem, plan: Packs) -> Function:
    """Copies what the taps of each result are multiplied by: of neighbours in an image as many as there are."""
    image_at, wide = problem.image_at, problem.extents[1]
    channels, taps = problem.group_channels, problem.size[1]
    runs, length = (1, taps * channels) if problem.is_nhwc else (channels, taps)
    stride, dilation, left = problem.stride[1], problem.dilation[1], problem.padding[1]
    own, rest = _lanes(length, plan), plan.near - runs * length
    held, around = plan.types_of(problem)[0], _around(problem, plan)

    inside = results_inside(wide, stride, -left, (taps - 1) * dilation - left)
    parts = tiles_of_line(plan.seen(problem).shape[3], 1, inside)

    @tc.function
    def result(x: Value, copied: Value, place: Values, r: Value, p: Value, part: Tiles) -> None:
        image, channel, h, j = place
        for run in range(runs):
            for q in own:
                tap, c = _tap_of(problem, plan, 0, run * length + q)
                column = (j + p) * stride + tap * dilation - left
                value = around
                if part.is_inside or 0 <= column < wide:
                    value = x[image_at(image, h, column, channel + c)].to(held)
                copied[r, 0, 0, p, run * length + q] = value
        if rest:
            for q in _lanes(rest, plan):
                copied[r, 0, 0, p, runs * length + q] = held(0)

    @tc.function
    def line(x: Value, copied: Value, place: Values, r: Value) -> None:
        for part in tc.static(parts):
            for p in range(part.first, part.first + part.count):
                result(x, copied, place, r, p, part)

    return line


def _around(problem: Problem, plan: Packs) -> Any:
    """The number that lies around images, as it is multiplied."""
    return plan.types_of(problem)[0].numpy.type(problem.around)


def _lanes(count: int, plan: Packs) -> Mapping:
    """The owners of so many numbers beside each other."""
    own = repeat(ceil(count / plan.lanes)) * spatial(plan.lanes)
    return own.within((count,)) if count % plan.lanes else own
