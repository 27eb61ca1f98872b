"""Convolutions where every feature has a channel of its own: as many products as numbers read, so no matrices.

    NHWC: own = spatial(warps, 1) * repeat(each, 1) * spatial(1, lanes)      of pixels by features
    NCHW: own = spatial(1, warps) * repeat(1, each) * spatial(1, lanes)      of features by pixels

Neighbouring lanes have neighbouring channels, or neighbouring pixels of one channel, as these lie in memory.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc.kernels.convolution.plan_gpu import Depthwise
from taskc.kernels.convolution.problem import Problem


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

    @tc.function
    def numbers(a: Any, b: Any) -> Any:
        """Which pixel and which feature."""
        return (a, b) if problem.is_nhwc else (b, a)

    @tc.function
    def product(x: Any, w: Any, sum: Any, pixel: Any, feature: Any, r: Any, s: Any) -> Any:
        i, j = row_of(pixel, r), column_of(pixel, s)
        value = total(0)
        if 0 <= i < height and 0 <= j < width:
            value = x[image_at(pixel // outputs, i, j, feature // group_features)].to(total)
        return sum + value * w[filter_at(feature, r, s, 0)].to(total)

    @tc.function
    def blocks(x: Any, w: Any, further: Any, y: Any) -> Any:
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
