"""Convolutions of images as matrix products whose left or right matrix is never laid out in memory.

    NHWC: y[pixel, feature] = x[pixel, q] * w[feature, q]        NCHW: y[feature, pixel] = w[feature, q] * x[q, pixel]

Pixels are numbered through all images, and q goes through what the filter covers: for each of its taps the
channels, in whole steps, so that a step is one tap and neighbouring channels. Where channels are few, steps
go through taps and channels alike. What lies in the padding is filled with zeros as it is loaded.
Where every feature has a channel of its own, there is no product of matrices: see convolution_depthwise.py.
On GPUs this is for groups, and as NHWC: neighbouring channels are what 16 bytes can be copied of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import taskc as tc
from taskc import CompileError, DType, Machine, auto_map, f16, tf32
from taskc.kernels.convolution_depthwise import depthwise
from taskc.kernels.convolution_problem import Extent, Problem, paddings, pair
from taskc.kernels.convolution_products import products, with_copies
from taskc.kernels.convolution_tiling import choose
from taskc.kernels.matmul import Tiling

__all__ = ["Tiling", "choose", "convolution"]


def convolution(
    images: Extent,
    height: int,
    width: int,
    channels: int,
    features: int,
    *,
    size: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    order: str = "NHWC",
    filters: str = "OHWI",
    bias: bool = False,
    activation: Any = None,
    dtype: DType = f16,
    total: DType | None = None,
    result: DType | None = None,
    machine: Machine | None = None,
    tiling: Tiling | None = None,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """A kernel of x, w, and offsets if there is a bias: y = activation(x * w + offsets), where * convolves.

        NHWC: x[images, height, width, channels]      OHWI: w[features, rows, columns, channels // groups]
        NCHW: x[images, channels, height, width]      OIHW: w[features, channels // groups, rows, columns]

    y has x's order. An extent of the filter, a stride and a dilation are numbers for both axes, or pairs.

    padding   zeros around: for all sides, (above and below, beside), or (above, left, below, right)
    groups    each has features // groups features, of channels // groups channels
    bias      a third operand, [features]
    total     the type that is summed in, and that the bias has: f32, or i32 of integers, if not said
    result    y's; `dtype` if not said, and `total` of integers and tf32
    machine   what it is built for, by its mappings: `tc.machine()`, or `tc.machine("sm_80")`
    tiling    how: of `own`, `depth` and `stages`
    """
    if order not in ("NHWC", "NCHW"):
        raise CompileError(f"images are NHWC or NCHW, not {order}")
    if filters not in ("OHWI", "OIHW"):
        raise CompileError(f"filters are OHWI or OIHW, not {filters}")
    if groups < 1 or channels % groups or features % groups:
        raise CompileError(
            f"{channels} channels and {features} features are not {groups} groups of as many"
        )
    if total is None:
        total = tc.i32 if dtype.is_integer else tc.f64 if dtype is tc.f64 else tc.f32
    problem = Problem(
        images=images,
        extents=(height, width),
        channels=channels,
        features=features,
        size=pair(size),
        stride=pair(stride),
        padding=paddings(padding),
        dilation=pair(dilation),
        groups=groups,
        is_nhwc=order == "NHWC",
        is_ohwi=filters == "OHWI",
        activation=activation,
        bias=bias,
        dtype=dtype,
        total=total,
        result=result or (total if dtype.is_integer or dtype is tf32 else dtype),
    )
    if min(problem.outputs) < 1:
        raise CompileError(
            f"a filter that covers {problem.covered} does not fit into {problem.padded}",
            hint="these are heights and widths, with dilation and padding",
        )
    machine = machine or tc.machine()
    if problem.near_channels == 1 and tiling is None:
        return depthwise(problem, machine)
    if groups == 1 and channels and not machine.is_processor:
        return products(problem, machine, tiling)
    if machine.is_processor or (problem.is_nhwc and problem.is_ohwi):
        plan = tiling or choose(problem, machine)
        return _kernel(problem, plan, is_processor=machine.is_processor)
    inner = replace(problem, is_nhwc=True, is_ohwi=True)
    kernel = _kernel(inner, tiling or choose(inner, machine), is_processor=False)

    def convolve(x: Any, w: Any, offsets: tuple[Any, ...], y: Any) -> None:
        images, weights, _, results = (type.shape for type in inner.types)
        x, w = x.reshape(*images), w.reshape(*weights)
        kernel(x, w, *offsets, out=y.reshape(*results))

    return with_copies(problem, inner, convolve, machine)


@dataclass(frozen=True, slots=True)
class _Steps:
    """q: what a filter covers, in steps of `depth`. `channels` of each tap, or, if flat, all taps' as one."""

    depth: int
    channels: int
    count: int
    is_flat: bool


def _steps(problem: Problem, depth: int) -> _Steps:
    """Steps of one tap each, unless the channels that fill them up are half as many again."""
    channels = -(-problem.near_channels // depth) * depth
    taps = problem.size[0] * problem.size[1]
    if taps > 1 and 2 * channels > 3 * problem.near_channels:
        return _Steps(depth, problem.near_channels, taps * problem.near_channels, True)
    return _Steps(depth, max(1, channels), taps * channels, False)


def _kernel(problem: Problem, plan: Tiling, *, is_processor: bool) -> tc.KernelDefinition:
    own, depth = plan.own, plan.depth
    tall, wide = own.shape
    steps = _steps(problem, depth)
    pixels, features, near = problem.pixels, problem.near_features, problem.near_channels
    across = problem.size[1]
    outputs = problem.outputs[0] * problem.outputs[1]
    row_of, column_of = problem.taps
    image_at, filter_at = problem.image_at, problem.filter_at
    result_at, finished = problem.result_at, problem.finished

    lines = auto_map((tall, wide), workers=own.workers, vector=16 // problem.result.nbytes)

    @tc.function
    def numbers(i, j):
        """Which pixel and which feature."""
        return (i, j) if problem.is_nhwc else (j, i)

    # Where a step that begins at p has its q-th tap and channel. A step of one tap says so for all q alike.

    @tc.function
    def tap(p, q):
        return (p + q) // near if steps.is_flat else p // steps.channels

    @tc.function
    def channel(p, q):
        return (p + q) % near if steps.is_flat else p % steps.channels + q

    @tc.function
    def is_own(p, q):
        """Whether it is one of the group's: where there is one group, what lies outside isn't loaded."""
        return p + q < steps.count if steps.is_flat else problem.groups == 1 or channel(p, q) < near

    @tc.function
    def source(group, pixel, p, q):
        return image_at(
            pixel // outputs,
            row_of(pixel, tap(p, q) // across),
            column_of(pixel, tap(p, q) % across),
            group * near + channel(p, q),
        )

    @tc.function
    def covered(x, group, pixel, p, q):
        """What the filter covers of a pixel's surroundings."""
        return x[source(group, pixel, p, q)] if is_own(p, q) else 0

    @tc.function
    def weight(w, group, feature, p, q):
        return w[
            filter_at(
                group * features + feature, tap(p, q) // across, tap(p, q) % across, channel(p, q)
            )
        ]

    @tc.function
    def store(y, acc, offsets, group, first, second):
        """By way of memory, so that neighbouring workers store what lies beside each other."""
        if is_processor:
            for i, j in own:
                pixel, feature = numbers(first + i, second + j)
                if pixel < pixels and feature < features:
                    f = group * features + feature
                    y[result_at(pixel, f)] = finished(acc[i, j], offsets, f)
        else:
            made = tc.shared(problem.result[tall, wide])
            for i, j in own:
                _, feature = numbers(first + i, second + j)
                f = min(group * features + feature, problem.features - 1)
                made[i, j] = finished(acc[i, j], offsets, f)
            for i, j in lines:
                pixel, feature = numbers(first + i, second + j)
                if pixel < pixels and feature < features:
                    y[result_at(pixel, group * features + feature)] = made[i, j]

    @tc.function
    def blocks(x, w, offsets, y):
        if problem.is_nhwc:
            for group, pixel, feature in tc.tiles(
                (problem.groups, pixels, features), by=(1, tall, wide)
            ):
                acc = tc.tile(problem.total, own, 0)
                for p in tc.pipeline(steps.count, by=depth, stages=plan.stages):
                    sx = tc.load(
                        (tall, depth), lambda i, q: covered(x, group, pixel + i, p, q), fill=0
                    )
                    sw = tc.load(
                        (wide, depth), lambda j, q: weight(w, group, feature + j, p, q), fill=0
                    )
                    tc.mma(acc, sx, sw.T)
                store(y, acc, offsets, group, pixel, feature)
        else:
            for group, feature, pixel in tc.tiles(
                (problem.groups, features, pixels), by=(1, tall, wide)
            ):
                acc = tc.tile(problem.total, own, 0)
                for p in tc.pipeline(steps.count, by=depth, stages=plan.stages):
                    sw = tc.load(
                        (tall, depth), lambda i, q: weight(w, group, feature + i, p, q), fill=0
                    )
                    sx = tc.load(
                        (depth, wide), lambda q, j: covered(x, group, pixel + j, p, q), fill=0
                    )
                    tc.mma(acc, sw, sx)
                store(y, acc, offsets, group, feature, pixel)

    return problem.kernel(own.workers, blocks)
