"""Direct convolutions on processors: a tile of neighbouring pixels of a row by vectors of features stays in registers.

    own = repeat(pixels, vectors) * spatial(1, lanes)

A step, of one channel and one tap, is `vectors` loads of filters, `pixels` numbers of the image, each the same for
all lanes, and a fused multiply-add for each of their pairs. So images may lie in any order, results with their features
beside each other; filters are packed in the order in which tiles read them. Zeros around an image are never read: the
tiles of a row that reach over its ends are code of their own. Where a filter covers one pixel, all rows of an
image may be one line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, Mapping, TensorType, repeat, spatial
from taskc.kernels.convolution.plan import Direct
from taskc.kernels.convolution.problem import Problem

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Tiles of a line side by side that are alike: from which pixel on, and whether some taps lie outside."""

    first: int
    count: int
    wide: int
    is_edge: bool


def packed_type(problem: Problem, plan: Direct) -> TensorType:
    """Filters [features, channels, rows, columns] in the order in which a tile reads them; what fills up is zeros."""
    wide, near = plan.wide, plan.near
    blocks, steps = max(1, ceil(problem.features / wide)), plan.channels_of(problem) // near
    layout = repeat(blocks, steps, 1, 1) * repeat(1, 1, *problem.size)
    layout *= repeat(1, near, 1, 1) * repeat(wide, 1, 1, 1)
    return problem.dtype[layout.shape].laid(layout)


def direct(problem: Problem, plan: Direct) -> tc.KernelDefinition | tc.ProgramDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the convolution: {misfit}", hint=str(plan))
    lines, columns = plan.result_lines(problem)
    tile, own = _tile(problem, plan), plan.own
    channels = plan.channels_of(problem)
    features = _stored_features(problem)
    parts = _parts(problem, plan)
    tiles = ceil(plan.columns / plan.pixels)
    waiting = plan.lines * (plan.features // plan.wide) * tiles if plan.depth < channels else 0

    @tc.function
    def row(x, w, further, y, sums, slot, image, f, i, j, c):
        """The tiles of a block that are in row i."""
        if plan.columns < columns:
            for t in range(tiles):
                at = j + t * plan.pixels
                if at < columns:
                    tile(x, w, further, y, sums, slot + t, image, f, i, at, c, own, False)
        else:
            for number, alike in tc.static(parts):
                for t in range(alike.count):
                    tile(
                        x,
                        w,
                        further,
                        y,
                        sums,
                        slot + number + t,
                        image,
                        f,
                        i,
                        alike.first + t * alike.wide,
                        c,
                        plan.tile(alike.wide),
                        alike.is_edge,
                    )

    @tc.function
    def block(x, w, further, y, image, feature, i, j):
        sums = tc.shared(problem.total[waiting, plan.pixels, plan.wide]) if waiting else None
        for c in range(0, channels, plan.depth):
            for r in range(plan.lines):
                if i + r < lines:
                    for f in range(0, plan.features, plan.wide):
                        if feature + f < features:
                            slot = (r * (plan.features // plan.wide) + f // plan.wide) * tiles
                            row(x, w, further, y, sums, slot, image, feature + f, i + r, j, c)

    @tc.function
    def blocks(x, w, further, y):
        shape, by = (
            (problem.images, features, lines, columns),
            (1, plan.features, plan.lines, plan.columns),
        )
        for image, feature, i, j in tc.tiles(shape, by=by, order=plan.order):
            block(x, w, further, y, image, feature, i, j)

    return problem.of_packed(plan.lanes, blocks, pack_filters(problem, plan))


def _stored_features(problem: Problem) -> int:
    """With those that fill up a block of NCHWc."""
    features = problem.of_sums.made.shape[-1 if problem.results == "NHWC" else 1]
    assert isinstance(features, int)
    return features


def pack_filters(problem: Problem, plan: Direct) -> tc.KernelDefinition:
    """Puts filters into the order in which tiles read them."""
    given, made, lanes = problem.types[1], packed_type(problem, plan), plan.lanes
    filter_at, features, channels = problem.filter_at, problem.features, problem.group_channels
    whole = made.shape[0], plan.channels_of(problem)

    @tc.kernel(workers=lanes)
    def pack_filters(w: given, packed: tc.out[made]):
        for f, c in tc.tiles(whole, by=(lanes, plan.near)):
            for q in range(plan.near):
                for r in range(problem.size[0]):
                    for s in range(problem.size[1]):
                        for o in spatial(lanes):
                            value = problem.dtype(0)
                            if f + o < features and c + q < channels:
                                value = w[filter_at(f + o, r, s, c + q)]
                            packed[f + o, c + q, r, s] = value

    return pack_filters


def _parts(problem: Problem, plan: Direct) -> list[tuple[int, _Tiles]]:
    """The tiles of a row, those that are alike together, each with the number of those before."""
    _, columns = plan.result_lines(problem)
    (_, stride), (_, step), (_, left, _, _) = problem.stride, problem.dilation, problem.padding
    (_, taps), (_, width) = problem.size, plan.lines_of(problem)
    found: list[tuple[int, _Tiles]] = []
    for number, first in enumerate(range(0, columns, plan.pixels)):
        wide = min(plan.pixels, columns - first)
        last = (first + wide - 1) * stride + (taps - 1) * step - left
        is_edge = first * stride < left or last >= width
        before = found[-1][1] if found else None
        if before and not is_edge and not before.is_edge and before.wide == wide:
            found[-1] = found[-1][0], _Tiles(before.first, before.count + 1, wide, False)
        else:
            found.append((number, _Tiles(first, 1, wide, is_edge)))
    return found


def _tile(problem: Problem, plan: Direct) -> Function:
    """What a block does for a tile, with the channels from c on."""
    total, channels = problem.total, plan.channels_of(problem)
    summed, store = _summed(problem, plan), _store(problem, plan)

    @tc.function
    def tile(x, w, further, y, sums, slot, image, f, i, j, c, own, is_edge):
        acc = tc.tile(total, own, 0)
        if sums is None:
            summed(x, w, acc, own, image, f, i, j, c, is_edge)
            store(y, acc, own, further, image, f, i, j)
        else:
            if c > 0:
                for p, o in own:
                    acc[p, o] = sums[slot, p, o]
            summed(x, w, acc, own, image, f, i, j, c, is_edge)
            if c + plan.depth < channels:
                for p, o in own:
                    sums[slot, p, o] = acc[p, o]
            else:
                store(y, acc, own, further, image, f, i, j)

    return tile


def _summed(problem: Problem, plan: Direct) -> Function:
    total, near = problem.total, plan.near
    (height, width), (taps, across) = plan.lines_of(problem), problem.size
    (down, right), (step, stride) = problem.stride, problem.dilation
    above, left = problem.padding[:2]
    group_features, group_channels = problem.group_features, problem.group_channels
    image_at = _in_lines(plan, problem.image_at, problem.extents[1])
    steps = ceil(min(plan.depth, group_channels) / near)
    # Features of a tile are of one group, or some of them of none.
    is_alike = problem.groups == 1 or group_features % plan.wide == 0
    is_whole = problem.features % plan.wide == 0

    @tc.function
    def add(x, w, acc, own, image, f, h, j, r, s, c, is_edge):
        """One channel and tap."""
        for p, o in own:
            column = (j + p) * right + s * stride - left
            is_own = is_alike or is_whole or f + o < problem.features
            if (not is_edge or 0 <= column < width) and is_own:
                group = (f if is_alike else f + o) // group_features
                number = x[image_at(image, h, column, group * group_channels + c)].to(total)
                acc[p, o] += number * w[f + o, c, r, s].to(total)

    @tc.function
    def across_channels(x, w, acc, own, image, f, h, j, r, s, first, is_edge):
        if is_alike:
            for c in range(near):
                add(x, w, acc, own, image, f, h, j, r, s, first + c, is_edge)
        else:
            # Constants, so that it is known which of a few neighbours each lane takes.
            for c in tc.static(range(near)):
                add(x, w, acc, own, image, f, h, j, r, s, first + c, is_edge)

    @tc.function
    def summed(x, w, acc, own, image, f, i, j, first, is_edge):
        for q in range(steps):
            for r in range(taps):
                h = i * down + r * step - above
                if 0 <= h < height:
                    if is_edge:  # which taps lie outside is constant
                        for s in tc.static(range(across)):
                            across_channels(
                                x, w, acc, own, image, f, h, j, r, s, first + q * near, is_edge
                            )
                    else:
                        for s in range(across):
                            across_channels(
                                x, w, acc, own, image, f, h, j, r, s, first + q * near, is_edge
                            )

    return summed


def _in_lines(plan: Direct, at: Function, width: int) -> Function:
    """Indices by `at`, from those of lines; `width` is a row's."""

    @tc.function
    def in_lines(image, i, j, channel):
        if plan.flat:
            return at(image, j // width, j % width, channel)
        else:
            return at(image, i, j, channel)

    return in_lines


def _store(problem: Problem, plan: Direct) -> Function:
    """Features lie along the lanes of sums. Where pixels do so in memory, tiles are turned first."""
    features, lanes, epilogue = problem.features, plan.lanes, problem.epilogue
    stored = _stored_features(problem)
    output_at = _in_lines(plan, problem.output_at, problem.outputs[1])

    @tc.function
    def store(y, acc, own, further, image, f, i, j):
        for p, o in own:
            if f + o < stored:
                at = output_at(image, i, j + p, f + o)
                value = problem.result(0)
                if f + o < features:
                    value = epilogue(acc[p, o], further, f + o, at)
                y[at] = value

    @tc.function
    def store_turned(y, acc, own, further, image, f, i, j):
        lines = tc.tile(problem.total, _turned(own, lanes))
        tc.copy(lines, acc)
        for p, o in _turned(own, lanes):
            if f + o < features:
                at = output_at(image, i, j + p, f + o)
                y[at] = epilogue(lines[p, o], further, f + o, at)

    return store_turned if problem.results == "NCHW" else store


def _turned(own: Mapping, lanes: int) -> Mapping:
    """The owners of a tile with its pixels along the lanes."""
    pixels, features = own.shape
    turned = repeat(ceil(pixels / lanes), features) * spatial(lanes, 1)
    return turned.within((pixels, features)) if pixels % lanes else turned
