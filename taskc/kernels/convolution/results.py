"""From the sums of a tile of pixels by features to results, stored where they belong."""

from __future__ import annotations

from math import ceil
from typing import Any

import taskc as tc
from taskc import Mapping, repeat, spatial
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.extents import Extent
from taskc.kernels.signatures import Function


def in_lines(flat: bool, at: Function, width: Extent) -> Function:
    """Indices by `at`, from those of lines: `width` is a row's, and where rows are one line they are `flat`."""

    @tc.function
    def in_lines(image: Any, i: Any, j: Any, channel: Any) -> Any:
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
    def store(y: Any, acc: Any, own: Any, further: Any, place: Any, phase: Any) -> Any:
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
    def store_turned(y: Any, acc: Any, own: Any, further: Any, place: Any, phase: Any) -> Any:
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
