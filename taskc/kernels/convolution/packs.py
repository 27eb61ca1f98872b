"""Convolutions of 8- and 16-bit numbers on processors, by the instruction that the machine has for them.

A block copies what it sees of an image, with the zeros beside it, so that a tile's pixels lie at one distance: for each
line of the image and each `near` channels, columns of one phase of the stride beside each other. So for a tap and
`near` channels a tile of a line's pixels by features is one `tc.mma`, of a part of the copy by a part of the filters,
which are packed in the order in which tiles read them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, TensorType, repeat, spatial
from taskc.kernels.convolution.plan_packs import Packs
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.convolution.results import in_lines, store_of
from taskc.kernels.images import tiles_of_line

Function = Callable[..., Any]


def packed_type(problem: Problem, plan: Packs) -> TensorType:
    """Filters [rows, columns, channels, features]: panels of a tile's features, packs of channels; zeros fill up."""
    panels = max(1, ceil(problem.features / plan.wide))
    rows, columns = problem.size
    channels = plan.steps_of(problem) * plan.near
    layout = repeat(1, 1, 1, panels) * repeat(rows, columns, channels // plan.pack, plan.wide)
    layout *= repeat(1, 1, plan.pack, 1)
    return problem.right[layout.shape].laid(layout)


def packs(problem: Problem, plan: Packs) -> tc.KernelDefinition | tc.ProgramDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the convolution: {misfit}", hint=str(plan))
    lines, columns = plan.result_lines(problem)
    seen, copy = plan.seen(problem), _copy(problem, plan)
    group_features, group_channels = problem.group_features, problem.group_channels
    parts = tiles_of_line(plan.columns, plan.pixels, lambda first, last: True)
    sum_up, down = _sum_up(problem, plan), problem.stride[0] // seen.down
    overhang = plan.is_of_tile_registers or (plan.flat and columns % plan.pixels > 0)
    store = store_of(problem, plan.flat, overhang=overhang)

    @tc.function
    def line(x, w, further, y, place, r):
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
    def blocks(x, w, further, y):
        shape = problem.images, problem.stored_features, lines, columns
        by = 1, plan.features, plan.lines, plan.columns
        for image, feature, i, j in tc.tiles(shape, by=by, order=plan.order):
            copied = tc.shared(problem.dtype[seen.shape])
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
    filter_at, features, channels = problem.filter_at, problem.features, problem.group_channels
    rows, columns, *whole = made.shape

    @tc.kernel(workers=lanes)
    def pack_filters(w: given, packed: tc.out[made]):
        for c, f in tc.tiles(whole, by=(plan.pack, lanes)):
            for r in range(rows):
                for s in range(columns):
                    for q in range(plan.pack):
                        for o in spatial(lanes):
                            value = problem.right(0)
                            if f + o < features and c + q < channels:
                                value = w[filter_at(f + o, r, s, c + q)]
                            packed[r, s, c + q, f + o] = value

    return pack_filters


def _sum_up(problem: Problem, plan: Packs) -> Function:
    """Adds the products of a tile to its sums: of the line i, and `at` a line and a column of the block's copy."""
    seen, near, steps = plan.seen(problem), plan.near, plan.steps_of(problem)
    (rows, columns), dilation, stride = problem.size, problem.dilation, problem.stride
    high, above = plan.lines_of(problem)[0], problem.padding[0]

    @tc.function
    def row(x, w, acc, f, r, line, column):
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
    def sum_up(x, w, acc, place, at):
        f, i = place
        for r in range(rows):
            if 0 <= i * stride[0] + r * dilation[0] - above < high:
                row(x, w, acc, f, r, at[0] + r * dilation[0] // seen.down, at[1])

    return sum_up


def _copy(problem: Problem, plan: Packs) -> Function:
    """Copies the lines that a block sees of an image. Zeros fill them up, and the channels of the last step."""
    seen, near, channels = plan.seen(problem), plan.near, problem.group_channels
    lines, steps, phases, columns, _ = seen.shape
    (high, wide), (above, left, _, _) = plan.lines_of(problem), problem.padding
    image_at = in_lines(plan.flat, problem.image_at, problem.extents[1])
    own = repeat(ceil(near / plan.lanes)) * spatial(plan.lanes)
    own = own.within((near,)) if near % plan.lanes else own

    @tc.function
    def line(x, copied, place, r):
        image, channel, h, j = place
        for step in range(steps):
            for phase in range(phases):
                for p in range(columns):
                    column = (j + p) * problem.stride[1] + phase * seen.across - left
                    for q in own:
                        c = step * near + q
                        value = problem.dtype(0)
                        if 0 <= column < wide and c < channels:
                            value = x[image_at(image, h, column, channel + c)]
                        copied[r, step, phase, p, q] = value

    @tc.function
    def copy(x, copied, place):
        image, channel, i, j = place
        for r in range(lines):
            h = i * problem.stride[0] + r * seen.down - above
            if 0 <= h < high:
                line(x, copied, (image, channel, h, j), r)

    return copy
