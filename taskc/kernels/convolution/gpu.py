"""Convolutions on GPUs: `gemm` with copies around it, `implicit_gemm` of groups, `depthwise` and `strips`."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import Machine, auto_map
from taskc.dataclass import dataclass
from taskc.kernels import matmul
from taskc.kernels.convolution.plan_gpu import (
    Blocks,
    Depthwise,
    DepthwiseStrips,
    Gemm,
    as_it_lies,
    product_of,
    shaped_residual,
    with_copies,
)
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.signatures import Function, Value, Values

# --- Convolutions on GPUs as programs around a GEMM, with copies of what doesn't lie as it should


def gemm(problem: Problem, plan: Gemm, machine: Machine) -> tc.ProgramDefinition:
    inner = as_it_lies(problem)
    product: Any = matmul.build(product_of(problem), plan.tiling, machine)
    rows = problem.images * problem.extents[0] * problem.extents[1]
    results = problem.pixels, problem.features

    def multiply(x: Value, w: Value, further: Values, y: Value) -> None:
        shape = (rows, inner.channels) if inner.is_pointwise else inner.types[0].shape
        w = w.reshape(problem.features, inner.deep)
        further = shaped_residual(problem, further, results)
        product(x.reshape(*shape), w, *further, out=y.reshape(*results))

    return with_copies(problem, inner, multiply, machine)


# --- Implicit GEMM: im2col without its memory ---------------------------------------------------
# Convolutions of images as matrix products whose left or right matrix is never laid out in memory.
#
#     NHWC: y[pixel, feature] = x[pixel, q] * w[feature, q]        NCHW: y[feature, pixel] = w[feature, q] * x[q, pixel]
#
# Pixels are numbered through all images, and q goes through what the filter covers: for each of its taps the
# channels, in whole steps, so that a step is one tap and neighbouring channels. Where channels are few, steps
# go through taps and channels alike. What lies in the padding is filled with zeros as it is loaded.
# On GPUs this is for groups, and as NHWC: neighbouring channels are what 16 bytes can be copied of.


@dataclass(frozen=True, slots=True)
class _Steps:
    """q: what a filter covers, in steps of `depth`. `channels` of each tap, or, if flat, all taps' as one."""

    depth: int
    channels: int
    count: int
    is_flat: bool


def _steps(problem: Problem, depth: int) -> _Steps:
    """Steps of one tap each, unless the channels that fill them up are half as many again."""
    channels = -(-problem.group_channels // depth) * depth
    taps = problem.size[0] * problem.size[1]
    if taps > 1 and 2 * channels > 3 * problem.group_channels:
        return _Steps(depth, problem.group_channels, taps * problem.group_channels, True)
    return _Steps(depth, max(1, channels), taps * channels, False)


def implicit_gemm(problem: Problem, plan: Blocks) -> tc.KernelDefinition:
    (tall, wide), depth = plan.own.shape, plan.depth
    steps, store = _steps(problem, depth), _store(problem, plan)
    covered, weight = _covered(problem, steps), _weight(problem, steps)
    both = problem.pixels, problem.group_features
    shape = problem.groups, *(both if problem.is_nhwc else both[::-1])

    @tc.function
    def multiply(
        acc: Value, x: Value, w: Value, group: Value, first: Value, second: Value, p: Value
    ) -> None:
        """Neighbours in memory are neighbours in what is loaded: channels of NHWC, pixels of NCHW."""
        if problem.is_nhwc:
            sx = tc.load((tall, depth), lambda i, q: covered(x, group, first + i, p, q), fill=0)
            sw = tc.load((wide, depth), lambda j, q: weight(w, group, second + j, p, q), fill=0)
            tc.mma(acc, sx, sw.T)
        else:
            sw = tc.load((tall, depth), lambda i, q: weight(w, group, first + i, p, q), fill=0)
            sx = tc.load((depth, wide), lambda q, j: covered(x, group, second + j, p, q), fill=0)
            tc.mma(acc, sw, sx)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        for group, first, second in tc.tiles(shape, by=(1, tall, wide)):
            acc = tc.tile(problem.total, plan.own, 0)
            for p in tc.pipeline(steps.count, by=depth, stages=plan.stages):
                multiply(acc, x, w, group, first, second, p)
            store(y, acc, further, group, first, second)

    return problem.kernel(plan.own.workers, blocks)


def _places(problem: Problem, steps: _Steps) -> tuple[Function, Function]:
    """Where a step that begins at p has its q-th tap and channel. A step of one tap says so for all q alike."""
    group_channels = problem.group_channels

    tap = tc.function(
        lambda p, q: (p + q) // group_channels if steps.is_flat else p // steps.channels
    )

    channel = tc.function(
        lambda p, q: (p + q) % group_channels if steps.is_flat else p % steps.channels + q
    )

    return tap, channel


def _covered(problem: Problem, steps: _Steps) -> Function:
    """The numbers around a pixel that the filter covers."""
    group_channels, across = problem.group_channels, problem.size[1]
    outputs = problem.outputs[0] * problem.outputs[1]
    (row_of, column_of), image_at = problem.taps, problem.image_at
    tap, channel = _places(problem, steps)

    @tc.function
    def is_own(p: Value, q: Value) -> Any:
        """Whether it is one of the group's: where there is one group, what lies outside isn't loaded."""
        return (
            p + q < steps.count
            if steps.is_flat
            else problem.groups == 1 or channel(p, q) < group_channels
        )

    @tc.function
    def source(group: Value, pixel: Value, p: Value, q: Value) -> Any:
        return image_at(
            pixel // outputs,
            row_of(pixel, tap(p, q) // across),
            column_of(pixel, tap(p, q) % across),
            group * group_channels + channel(p, q),
        )

    return tc.function(
        lambda x, group, pixel, p, q: x[source(group, pixel, p, q)] if is_own(p, q) else 0
    )


def _weight(problem: Problem, steps: _Steps) -> Function:
    features, across, filter_at = problem.group_features, problem.size[1], problem.filter_at
    tap, channel = _places(problem, steps)

    @tc.function
    def weight(w: Value, group: Value, feature: Value, p: Value, q: Value) -> Value:
        return w[
            filter_at(
                group * features + feature, tap(p, q) // across, tap(p, q) % across, channel(p, q)
            )
        ]

    return weight


def _store(problem: Problem, plan: Blocks) -> Function:
    """Stores go by way of memory, so that neighbouring workers store what lies beside each other."""
    own, features, pixels = plan.own, problem.group_features, problem.pixels
    result_at, epilogue = problem.result_at, problem.epilogue
    lines = auto_map(own.shape, workers=own.workers, vector=16 // problem.result.nbytes)

    # Which pixel and which feature.
    numbers = tc.function(lambda i, j: (i, j) if problem.is_nhwc else (j, i))

    @tc.function
    def store(
        y: Value, acc: Value, further: Values, group: Value, first: Value, second: Value
    ) -> None:
        made = tc.shared(problem.result[own.shape])
        for i, j in own:
            pixel, feature = numbers(first + i, second + j)
            f = min(group * features + feature, problem.features - 1)
            made[i, j] = epilogue(acc[i, j], further, f, result_at(min(pixel, pixels - 1), f))
        for i, j in lines:
            pixel, feature = numbers(first + i, second + j)
            if pixel < pixels and feature < features:
                y[result_at(pixel, group * features + feature)] = made[i, j]

    return store


# --- Convolutions where every feature has a channel of its own: as many products as numbers read, so no matrices
#     NHWC: own = spatial(warps, 1) * repeat(each, 1) * spatial(1, lanes)      of pixels by features
#     NCHW: own = spatial(1, warps) * repeat(1, each) * spatial(1, lanes)      of features by pixels
#
# Neighbouring lanes have neighbouring channels, or neighbouring pixels of one channel, as these lie in memory.


def depthwise(problem: Problem, plan: Depthwise) -> tc.KernelDefinition:
    pixels, features, group_features = problem.pixels, problem.features, problem.group_features
    rows, columns = problem.size
    height, width = problem.extents
    total, image_at = problem.total, problem.image_at
    row_of, column_of = problem.taps
    outputs = problem.outputs[0] * problem.outputs[1]
    filter_at, result_at, epilogue = problem.filter_at, problem.result_at, problem.epilogue
    own = plan.own(problem)
    shape = (pixels, features) if problem.is_nhwc else (features, pixels)

    # Which pixel and which feature.
    numbers = tc.function(lambda a, b: (a, b) if problem.is_nhwc else (b, a))

    @tc.function
    def product(
        x: Value, w: Value, sum: Value, pixel: Value, feature: Value, r: Value, s: Value
    ) -> Any:
        i, j = row_of(pixel, r), column_of(pixel, s)
        value = total(0)
        if 0 <= i < height and 0 <= j < width:
            value = x[image_at(pixel // outputs, i, j, feature // group_features)].to(total)
        return sum + value * w[filter_at(feature, r, s, 0)].to(total)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        for first, second in tc.tiles(shape, by=own.shape):
            acc = tc.tile(total, own, 0)
            for r in range(rows):
                for s in range(columns):
                    for a, b in own:
                        if first + a < shape[0] and second + b < shape[1]:
                            pixel, feature = numbers(first + a, second + b)
                            acc[a, b] = product(x, w, acc[a, b], pixel, feature, r, s)
            for a, b in own:
                if first + a < shape[0] and second + b < shape[1]:
                    pixel, feature = numbers(first + a, second + b)
                    y[result_at(pixel, feature)] = epilogue(
                        acc[a, b], further, feature, result_at(pixel, feature)
                    )

    return problem.kernel(own.workers, blocks)


# --- The same of NHWC, by strips of neighbouring pixels
#     own = spatial(down, across, 1, beside) * repeat(1, 1, wide, channels)
#
# A worker reads all that its windows see of a row once, a few channels in an access. Of small filters all rows are
# under way at the same time. A block keeps its filters as [tap, channel].

_FEW_TAPS = 9


def strips(problem: Problem, plan: DepthwiseStrips) -> tc.KernelDefinition:
    features, (height, width), (high, broad) = problem.features, problem.extents, problem.outputs
    (rows, columns), (down, right), (step, apart) = problem.size, problem.stride, problem.dilation
    above, left = problem.padding[:2]
    total, image_at, filter_at = problem.total, problem.image_at, problem.filter_at
    epilogue, output_at, wide = problem.epilogue, problem.output_at, plan.wide
    own = plan.own(wide)
    line = plan.own((wide - 1) * right + (columns - 1) * apart + 1)
    block = plan.down, plan.across * wide, own.shape[3]
    filters = auto_map((rows * columns, block[2]), workers=own.workers)

    @tc.function
    def add(x: Value, acc: Value, weights: Value, place: Values, r: Value) -> None:
        """The products of a filter's row."""
        image, row, col, first = place
        seen = tc.tile(problem.dtype, line, 0)
        for a, b, q, c in line:
            i = (row + a) * down + r * step - above
            j = (col + b * wide) * right + q - left
            if 0 <= i < height and 0 <= j < width and first + c < features:
                seen[a, b, q, c] = x[image_at(image, i, j, first + c)]
        for s in tc.static(range(columns)):
            for a, b, q, c in own:
                number = seen[a, b, q * right + s * apart, c].to(total)
                acc[a, b, q, c] += number * weights[r * columns + s, c].to(total)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        shape = problem.images, high, broad, features
        for image, row, col, first in tc.tiles(shape, by=(1, *block)):
            weights = tc.shared(problem.right[rows * columns, block[2]])
            for t, c in filters:
                if first + c < features:
                    weights[t, c] = w[filter_at(first + c, t // columns, t % columns, 0)]
                else:
                    weights[t, c] = 0
            acc = tc.tile(total, own, 0)
            if rows * columns <= _FEW_TAPS:
                for r in tc.static(range(rows)):
                    add(x, acc, weights, (image, row, col, first), r)
            else:
                for r in range(rows):
                    add(x, acc, weights, (image, row, col, first), r)
            for a, b, q, c in own:
                i, j, f = row + a, col + b * wide + q, first + c
                if i < high and j < broad and f < features:
                    at = output_at(image, i, j, f)
                    y[at] = epilogue(acc[a, b, q, c], further, f, at)

    return problem.kernel(own.workers, blocks)
