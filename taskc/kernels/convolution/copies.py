"""Copies around a convolution on GPUs of what doesn't lie as its kernels want it.

These are images and results that are NCHW, filters that are OIHW, and channels that don't fill whole accesses. A copy
takes as long as reading and writing it once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import DType, Machine
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.padding import pad
from taskc.kernels.transpose import transpose


def with_copies(
    problem: Problem, inner: Problem, convolve: Callable[..., None], machine: Machine
) -> tc.ProgramDefinition:
    """The problem as `inner`, which is NHWC and OHWI, with copies around it of what doesn't lie so.

    convolve(x, w, further, y), with what else results are made of, is given inner's tensors, in whatever shape.
    """
    channels = inner.channels
    images, features, pixels = problem.images, problem.features, problem.pixels
    area, made = problem.extents[0] * problem.extents[1], problem.outputs[0] * problem.outputs[1]
    taps = problem.size[0] * problem.size[1]

    def transposed(x: Any, shape: tuple[Any, ...], dtype: DType, y: Any = None) -> Any:
        """The last two axes of three exchanged."""
        first, rows, columns = shape
        y = tc.empty(dtype[first, columns, rows]) if y is None else y
        turn = transpose(shape, (0, 2, 1), dtype=dtype, machine=machine)
        turn(x.reshape(*shape), out=y.reshape(first, columns, rows))
        return y

    def padded(x: Any, rows: Any) -> Any:
        """Zeros behind the channels, up to whole accesses."""
        if channels == problem.channels:
            return x
        y = tc.empty(problem.dtype[rows, channels])
        copy = pad(own(rows), problem.channels, problem.dtype, machine, channels)
        copy(x.reshape(rows, problem.channels), out=y)
        return y

    def steps(x: Any, w: Any, further: tuple[Any, ...], y: Any) -> None:
        if not problem.is_nhwc:
            x = transposed(x, (images, problem.channels, area), problem.dtype)
        if not problem.is_ohwi:
            w = transposed(w, (features, problem.group_channels, taps), problem.dtype)
        x, w = padded(x, images * area), padded(w, features * taps)
        results = y if problem.is_nhwc else tc.empty(problem.result[pixels, features])
        if problem.residual and not problem.is_nhwc:
            residual = transposed(further[-1], (images, features, made), problem.result)
            further = (*further[:-1], residual)
        convolve(x, w, further, results)
        if not problem.is_nhwc:
            transposed(results, (images, made, features), problem.result, y)

    return problem.program(steps)


def shaped_residual(
    problem: Problem, further: tuple[Any, ...], shape: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What else results are made of, with the residual, if there is one, in this shape."""
    return (*further[:-1], further[-1].reshape(*shape)) if problem.residual else further


def own(extent: Any) -> Any:
    """An extent of a kernel that has this one from what it is given."""
    return extent if isinstance(extent, int) else tc.dim("rows")
