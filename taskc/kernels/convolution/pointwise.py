"""Convolutions on processors of NCHW images by filters of one pixel, as products of matrices.

    y[image, feature, pixel] = w[feature, channel] * x[image, channel, pixel]

Pixels lie along the lanes. Where a row of them is longer than there are channels, panels of x are copied to lie
together: `direct` would read a few pixels of each channel, from many pages at a time.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import Machine
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.matmul import batch_matmul


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

    def steps(x: Any, w: Any, further: tuple[Any, ...], y: Any) -> None:
        results = images, features, pixels
        if problem.residual:
            further = *further[:-1], further[-1].reshape(*results)
        filters = w.reshape(features, channels)
        product(filters, x.reshape(images, channels, pixels), *further, out=y.reshape(*results))

    return problem.program(steps)


def _pixels(problem: Problem) -> Any:
    """The pixels of an image."""
    return problem.slices.extent * problem.extents[0] * problem.extents[1]
