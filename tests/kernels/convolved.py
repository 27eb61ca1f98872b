"""What a convolution is called with, and what has to come out: arrays are NHWC and OHWI until a call needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import taskc as tc
from taskc import Machine, TensorType, f32
from taskc.kernels.convolution import Problem
from taskc.kernels.convolution.problem import problem_of

Array = np.ndarray[Any, Any]

_PLAIN: dict[str, Any] = dict.fromkeys(("bias", "scale", "residual"), False) | {
    "size": 3, "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "order": "NHWC", "filters": "OHWI",
    "activation": None, "dtype": f32, "total": None, "result": None,
}  # fmt: skip


def problem(sizes: Sequence[Any], options: dict[str, Any], machine: Machine) -> Problem:
    """What `convolution(*sizes, **options)` is of f32, if its options don't say otherwise."""
    images, height, width, channels, features = sizes
    return problem_of(
        images, (height, width), channels, features, lanes=machine.lanes, **_PLAIN | options
    )


def exact(
    x: Array,
    w: Array,
    stride: tuple[int, int],
    padding: Sequence[int],
    dilation: tuple[int, int],
    groups: int,
    around: int = 0,
) -> Array:
    (above, left, below, right), (down, beside) = padding, stride
    x = np.pad(x, ((0, 0), (above, below), (left, right), (0, 0)), constant_values=around)
    features, height, width, near = w.shape
    rows = (x.shape[1] - (height - 1) * dilation[0] - 1) // down + 1
    columns = (x.shape[2] - (width - 1) * dilation[1] - 1) // beside + 1
    y = np.zeros((len(x), rows, columns, features))
    for r in range(height):
        for s in range(width):
            part = x[:, r * dilation[0] :, s * dilation[1] :][:, ::down, ::beside]
            part = part[:, :rows, :columns].reshape(len(x), rows, columns, groups, near)
            parts = w[:, r, s].reshape(groups, features // groups, near)
            y += np.einsum("nhwgc,gfc->nhwgf", part, parts).reshape(y.shape)
    return y


def given(array: Array, order: str, type: TensorType) -> Array:
    """Images as a parameter takes them: channels beyond theirs are zeros, blocks are packed."""
    if order == "NHWC":
        return array
    array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    if order == "NCHW":
        return array
    shape = len(array), *type.shape[1:]
    more = shape[1] - array.shape[1]
    array = np.pad(array, ((0, 0), (0, more), (0, 0), (0, 0)))
    return tc.pack(array, TensorType(type.dtype, shape, type.layout))


def given_filters(w: Array, problem: Problem, kernel: tc.KernelDefinition | Any) -> Array:
    if not problem.is_ohwi:
        w = np.ascontiguousarray(w.transpose(0, 3, 1, 2))
    packed: Array = kernel.pack(w) if problem.packed else w
    return packed


def results_of(made: Array, order: str, features: int) -> Array:
    """Results of a call as NHWC; what fills up the last block has to be zeros."""
    if order == "NHWC":
        return made
    made = made.unpack() if isinstance(made, tc.Packed) else made
    assert not made[:, features:].any()
    return made[:, :features].transpose(0, 2, 3, 1)
