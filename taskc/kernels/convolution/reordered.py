"""Convolutions on processors by way of another problem: `reordered` images, and products of `pointwise` filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import Machine, repeat, spatial
from taskc.kernels.convolution.direct import direct, pack_filters
from taskc.kernels.convolution.plan import Direct
from taskc.kernels.convolution.plan_widened import Widened
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.convolution.widened import pack_filters as pack_widened, widened
from taskc.kernels.matmul import batch_matmul
from taskc.kernels.signatures import Value, Values
from taskc.kernels.transpose import transpose

# --- Convolutions on processors of NCHW images in groups so small that lanes take channels of their own
# Of NCHW these are far apart. So a kernel puts images into blocks first, whose channels lie beside each other: it loads
# squares of channels by pixels with pixels along the lanes, turns them, and stores them. Where height or width is known
# only at a call there are no blocks, and images become NHWC.


def reordered_problem(problem: Problem) -> Problem:
    """The convolution of images in another order."""
    return replace(problem, order="NCHWc" if problem.is_sized else "NHWC", packed=True)


def reordered(problem: Problem, plan: Direct | Widened, machine: Machine) -> tc.ProgramDefinition:
    """The convolution of images in another order, by a plan of it, with the kernel before it that puts them there."""
    inner = reordered_problem(problem)
    order = in_blocks(problem) if problem.is_sized else in_pixels(problem, machine)
    if isinstance(plan, Direct):
        kernel, packing = direct(inner, plan), pack_filters(inner, plan)
    else:
        kernel, packing = widened(inner, plan), pack_widened(inner, plan)

    def steps(x: Value, w: Value, further: Values, y: Value) -> None:
        kernel(order(x), w if problem.packed else packing(w), *further, y=y)

    return problem.program(steps, packing if problem.packed else None)


def in_pixels(problem: Problem, machine: Machine) -> tc.ProgramDefinition:
    """NCHW images as NHWC."""
    given, made = problem.types[0], replace(problem, order="NHWC").types[0]
    images, channels, height, width = given.shape
    turn = transpose(
        (images, channels, tc.dim("pixels")), (0, 2, 1), dtype=problem.dtype, machine=machine
    )

    @tc.program
    def in_pixels(x: tc.typed[given], y: tc.out[made]) -> None:
        pixels = height * width
        turn(x.reshape(images, channels, pixels), out=y.reshape(images, pixels, channels))

    return in_pixels


def in_blocks(problem: Problem) -> tc.KernelDefinition:
    given, made = problem.types[0], replace(problem, order="NCHWc").types[0]
    channels, width, lanes = problem.channels, problem.extents[1], problem.lanes
    pixels = problem.extents[0] * width
    rows, columns = repeat(lanes, 1) * spatial(1, lanes), repeat(1, lanes) * spatial(lanes, 1)

    @tc.kernel(workers=lanes)
    def in_blocks(x: tc.typed[given], y: tc.out[made]) -> None:
        shape = problem.images, made.shape[1], pixels
        for image, channel, pixel in tc.tiles(shape, by=(1, lanes, lanes)):
            square = tc.tile(problem.dtype, rows, 0)
            for c, p in rows:
                if channel + c < channels and pixel + p < pixels:
                    i, j = (pixel + p) // width, (pixel + p) % width
                    square[c, p] = x[image, channel + c, i, j]
            turned = tc.tile(problem.dtype, columns)
            tc.copy(turned, square)
            for c, p in columns:
                if pixel + p < pixels:
                    i, j = (pixel + p) // width, (pixel + p) % width
                    y[image, channel + c, i, j] = turned[c, p]

    return in_blocks


# --- Convolutions on processors of NCHW images by filters of one pixel, as products of matrices -
#     y[image, feature, pixel] = w[feature, channel] * x[image, channel, pixel]
#
# Pixels lie along the lanes. Where a row of them is longer than there are channels, panels of x are copied to lie
# together: `direct` would read a few pixels of each channel, from many pages at a time.


def is_product(problem: Problem) -> bool:
    """The convolution is one of few channels, and a plain product of what callers have."""
    if not (
        problem.is_pointwise and problem.is_sized and problem.order == problem.results == "NCHW"
    ):
        return False
    is_float = problem.dtype is problem.right is problem.total and problem.dtype.is_float
    is_plain = problem.groups == 1 and not problem.transposed and not problem.in_place
    return is_float and is_plain and 0 < problem.channels < _pixels(problem)


def pointwise(problem: Problem, machine: Machine) -> tc.ProgramDefinition:
    images, channels, features, pixels = (
        problem.images, problem.channels, problem.features, _pixels(problem),
    )  # fmt: skip
    product: Any = batch_matmul(
        ((), (images,)), features, pixels, channels, dtype=problem.dtype, total=problem.total,
        result=problem.result, bias=problem.bias, scale=problem.scale, residual=problem.residual,
        by_rows=True, activation=problem.activation, machine=machine,
    )  # fmt: skip

    def steps(x: Value, w: Value, further: Values, y: Value) -> None:
        results = images, features, pixels
        if problem.residual:
            further = *further[:-1], further[-1].reshape(*results)
        filters = w.reshape(features, channels)
        product(filters, x.reshape(images, channels, pixels), *further, out=y.reshape(*results))

    return problem.program(steps)


def _pixels(problem: Problem) -> Any:
    """The pixels of an image."""
    return problem.slices.extent * problem.extents[0] * problem.extents[1]
