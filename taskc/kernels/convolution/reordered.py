"""Convolutions on processors of NCHW images in groups so small that lanes take channels of their own.

Of NCHW these are far apart. So a kernel puts images into blocks first, whose channels lie beside each other: it loads
squares of channels by pixels with pixels along the lanes, turns them, and stores them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import repeat, spatial
from taskc.kernels.convolution.direct import direct, pack_filters
from taskc.kernels.convolution.plan import Direct
from taskc.kernels.convolution.problem import Problem


def blocked_problem(problem: Problem) -> Problem:
    """The convolution of blocked images."""
    return replace(problem, order="NCHWc", packed=True)


def reordered(problem: Problem, plan: Direct) -> tc.ProgramDefinition:
    """The convolution of blocked images by a plan of it, with the kernel before it that makes them."""
    inner = blocked_problem(problem)
    kernel, packing, blocks = direct(inner, plan), pack_filters(inner, plan), in_blocks(problem)

    def steps(x: Any, w: Any, further: tuple[Any, ...], y: Any) -> None:
        kernel(blocks(x), w if problem.packed else packing(w), *further, y=y)

    return problem.program(steps, packing if problem.packed else None)


def in_blocks(problem: Problem) -> tc.KernelDefinition:
    given, made = problem.types[0], replace(problem, order="NCHWc").types[0]
    channels, width, lanes = problem.channels, problem.extents[1], problem.lanes
    pixels = problem.extents[0] * width
    rows, columns = repeat(lanes, 1) * spatial(1, lanes), repeat(1, lanes) * spatial(lanes, 1)

    @tc.kernel(workers=lanes)
    def in_blocks(x: given, y: tc.out[made]):
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
