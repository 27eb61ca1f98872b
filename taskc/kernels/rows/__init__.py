"""Softmax and normalizations over the last axis of a matrix, or another axis of an array.

problem.py is what is computed, plan.py how. algorithms.py has:

whole    rows that a block has in registers: read once, and written once
strips   rows that a block goes over two or three times, from the nearest cache but for the first
columns  rows whose elements aren't neighbours: each worker has rows of its own

x is an array [m, n], and a row has n elements; with `inner` it is an array [m, n, inner], and a row lies along the
middle axis. Numbers of 16 bits are converted as they are read, and rounded when they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskc import CompileError, DType, KernelDefinition, Machine, f32
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.rows.algorithms import columns, strips, whole
from taskc.kernels.rows.plan import Columns, Strips, Whole, candidates
from taskc.kernels.rows.problem import Groups, Problem
from taskc.kernels.signatures import Extent, parameters_of, require_numbers

__all__ = [
    "Columns", "Groups", "Problem", "Strips", "Whole", "build", "group_norm", "instance_norm", "layer_norm",
    "log_softmax", "rms_norm", "softmax",
]  # fmt: skip


def softmax(
    m: Extent, n: Extent, *, inner: Extent = 1, dtype: DType = f32, machine: Machine | None = None
) -> KernelDefinition:
    """exp(x - peak) / sum(exp(x - peak)) for each row, with the row's largest element as its peak."""
    return ROWS(function="softmax", **locals())


@parameters_of(softmax)
def log_softmax(**options: Any) -> KernelDefinition:
    """x - peak - log(sum(exp(x - peak))) for each row."""
    return ROWS(function="log_softmax", **options)


def layer_norm(
    m: Extent,
    n: Extent,
    *,
    inner: Extent = 1,
    dtype: DType = f32,
    scaled: bool = True,
    shifted: bool = True,
    epsilon: float = 1e-5,
    machine: Machine | None = None,
) -> KernelDefinition:
    """(x - mean) / sqrt(variance + epsilon) for each row, times `scale`, plus `shift`.

    scaled, shifted  whether there are such parameters, of n elements. The variance is taken about the
    mean, in a pass of its own.
    """
    return ROWS(function="layer_norm", **locals())


def rms_norm(
    m: Extent,
    n: Extent,
    *,
    inner: Extent = 1,
    dtype: DType = f32,
    scaled: bool = True,
    epsilon: float = 1e-5,
    machine: Machine | None = None,
) -> KernelDefinition:
    """x / sqrt(mean(x**2) + epsilon) for each row, times `scale`, of n elements, if there is one."""
    return ROWS(function="rms_norm", **locals())


def group_norm(
    shape: Sequence[Extent],
    groups: int,
    *,
    dtype: DType = f32,
    scaled: bool = True,
    shifted: bool = True,
    epsilon: float = 1e-5,
    machine: Machine | None = None,
) -> KernelDefinition:
    """`layer_norm` of each group of neighbouring channels of x[images, channels, ...], whose images may be a `tc.dim`.

    scaled, shifted  whether there are such parameters, of a number for each channel
    """
    images, channels, *extents = shape
    require_numbers(
        "group_norm", channels=channels, **{f"axis {n + 2}": x for n, x in enumerate(extents)}
    )
    if groups < 1 or channels % groups:
        raise CompileError(f"{channels} channels are not {groups} groups of as many")
    of_groups = Groups((images, channels, *extents), groups)
    return ROWS(
        function="layer_norm", m=images * groups, n=channels // groups * of_groups.pixels, dtype=dtype,
        scaled=scaled, shifted=shifted, epsilon=epsilon, groups=of_groups, machine=machine,
    )  # fmt: skip


def instance_norm(
    shape: Sequence[Extent],
    *,
    dtype: DType = f32,
    scaled: bool = True,
    shifted: bool = True,
    epsilon: float = 1e-5,
    machine: Machine | None = None,
) -> KernelDefinition:
    """`group_norm` with a group for each channel."""
    return group_norm(groups=shape[1], **locals())


ROWS: KernelOperator[Problem, Strips | Whole | Columns, KernelDefinition] = operator(
    "rows", Problem, candidates, {Strips: strips, Whole: whole, Columns: columns}
)
build = ROWS.build
