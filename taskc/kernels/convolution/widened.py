"""Depthwise convolutions of narrow numbers on processors: a channel is a lane's, and images are widened once.

A block copies the lines that it sees of a vector of channels, with what lies around the image, in the type of the sums.
So each product is a fused multiply-add of two vectors as they lie in memory, without a conversion or a test, and a tile
of neighbouring results stays in registers. The sums of bytes are exact in f32.
"""

from __future__ import annotations

from math import ceil

import taskc as tc
from taskc import CompileError, TensorType, repeat, spatial
from taskc.kernels.convolution.direct import store_of
from taskc.kernels.convolution.plan_widened import Widened, sized
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.images import results_inside, tiles_of_line
from taskc.kernels.signatures import Function, Value, Values


def packed_type(problem: Problem, plan: Widened) -> TensorType:
    """Filters [features, 1, rows, columns] in the type of sums, the taps of a vector of channels beside each other."""
    blocks = ceil(problem.features / plan.lanes)
    layout = repeat(blocks, 1, *problem.size) * repeat(plan.lanes, 1, 1, 1)
    return problem.total[layout.shape].laid(layout)


def pack_filters(problem: Problem, plan: Widened) -> tc.KernelDefinition:
    """Widens filters, and puts them into the order in which tiles read them; zeros fill up."""
    given, made, lanes = problem.types[1], packed_type(problem, plan), plan.lanes
    filter_at, features = problem.filter_at, problem.features

    @tc.kernel(workers=lanes)
    def pack_filters(w: tc.typed[given], packed: tc.out[made]) -> None:
        for f, c in tc.tiles(made.shape[:2], by=(lanes, 1)):
            for r in range(made.shape[2]):
                for s in range(made.shape[3]):
                    for o in spatial(lanes):
                        value = problem.total(0)
                        if f + o < features and c < 1:
                            value = w[filter_at(f + o, r, s, c)].to(problem.total)
                        packed[f + o, c, r, s] = value

    return pack_filters


def widened(problem: Problem, plan: Widened) -> tc.KernelDefinition | tc.ProgramDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the convolution: {misfit}", hint=str(plan))
    lines, columns = sized(problem.outputs)
    lanes, total, seen = plan.lanes, problem.total, plan.seen(problem)
    parts = tiles_of_line(columns, plan.pixels, range(columns))
    store, copy, (down, across) = store_of(problem, False), _copy(problem, plan), problem.stride
    (rows, taps), dilation = problem.size, problem.dilation

    @tc.function
    def line(copied: Value, w: Value, further: Values, y: Value, place: Values, r: Value) -> None:
        image, f, i = place
        for part in tc.static(parts):
            own = plan.tile(part.wide)
            for t in range(part.count):
                at = part.first + t * part.wide
                acc = tc.tile(total, own, 0)
                for q in range(rows):
                    for s in tc.static(range(taps)):
                        for p, o in own:
                            column = (at + p) * across + s * dilation[1]
                            number = copied[r * down + q * dilation[0], column, o]
                            acc[p, o] += number * w[f + o, 0, q, s]
                store(y, acc, own, further, (image, f, i + r, at), 0)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        shape = problem.images, problem.stored_features, lines
        for image, feature, i in tc.tiles(shape, by=(1, lanes, plan.lines)):
            copied = tc.shared(total[seen])
            copy(x, copied, (image, feature, i))
            for r in range(plan.lines):
                if i + r < lines:
                    line(copied, w, further, y, (image, feature, i), r)

    return problem.of_packed(lanes, blocks, pack_filters(problem, plan))


def _copy(problem: Problem, plan: Widened) -> Function:
    """Copies the lines that a block sees, and what lies around them; nothing is known beyond the last channel."""
    (high, wide), total = sized(problem.extents), problem.total
    seen_lines, seen_columns, lanes = plan.seen(problem)
    above, left = problem.padding[:2]
    inside = results_inside(wide, 1, -left, -left)
    parts = tiles_of_line(seen_columns, 1, inside)
    image_at, channels, around = (
        problem.image_at,
        problem.channels,
        total.numpy.type(problem.around),
    )

    @tc.function
    def copy(x: Value, copied: Value, place: Values) -> None:
        image, f, i = place
        for r in range(seen_lines):
            h = i * problem.stride[0] + r - above
            for part in tc.static(parts):
                for p in range(part.first, part.first + part.count):
                    for o in spatial(lanes):
                        value = around
                        is_seen = 0 <= h < high and f + o < channels
                        if is_seen and (part.is_inside or 0 <= p - left < wide):
                            value = x[image_at(image, h, p - left, f + o)].to(total)
                        copied[r, p, o] = value

    return copy
