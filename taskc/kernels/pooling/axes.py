"""Pooling of images of one axis, and of three: by that of two axes.

Images of one axis are images of one row. Of three axes the windows are folded slice by slice, and then along the
depth, by windows of a single column of all that lies in a slice; the average of averages is the average, since
what a window counts of its slices is the same for each of its rows and columns.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import taskc as tc
from taskc import DType, Machine, ProgramDefinition, TensorType
from taskc.kernels.extents import Extent, require_numbers
from taskc.kernels.images import check_orders, six_sides, triple
from taskc.kernels.pooling.problem import Problem, problem_of
from taskc.kernels.precision import wide

Build = Any  # makes a kernel of a problem


def of_one_axis(
    build: Build, operator: str, images: Extent, width: Extent, channels: int,
    *, size: int, stride: int | None, padding: int | tuple[int, int], dilation: int, order: str,
    machine: Machine | None, **options: Any,
) -> ProgramDefinition:  # fmt: skip
    """x[images, width, channels], or [images, channels, width]."""
    machine = machine or tc.machine()
    left, right = (padding, padding) if isinstance(padding, int) else padding
    problem = problem_of(
        operator, images, (1, width), channels,
        size=(1, size), stride=None if stride is None else (1, stride), padding=(0, left, 0, right),
        dilation=(1, dilation), order=order, lanes=machine.lanes, **options,
    )  # fmt: skip
    pool = build(problem, None, machine)
    given, made = (_without_height(kind, order) for kind in (problem.given, problem.made))

    @tc.program
    def pool_1d(x: tc.typed[given], y: tc.out[made]) -> None:
        pool(x.reshape(*problem.given.shape), out=y.reshape(*problem.made.shape))

    return pool_1d


def _without_height(kind: TensorType, order: str) -> TensorType:
    place = 1 if order == "NHWC" else 2
    return TensorType(kind.dtype, (*kind.shape[:place], *kind.shape[place + 1 :]))


def of_three_axes(
    build: Build, operator: str, images: Extent, depth: int, height: int, width: int, channels: int,
    *, size: Any, stride: Any, padding: Any, dilation: Any, order: str, dtype: DType,
    machine: Machine | None, **options: Any,
) -> ProgramDefinition:  # fmt: skip
    """x[images, depth, height, width, channels], or [images, channels, depth, height, width]."""
    check_orders(order)
    machine = machine or tc.machine()
    require_numbers("pooling", depth=depth, height=height, width=width, channels=channels)
    taps, apart = triple(size, "size"), triple(dilation, "dilation")
    steps = taps if stride is None else triple(stride, "stride")
    windows: tuple[tuple[int, ...], ...] = taps, steps, apart
    front, above, left, back, below, right = six_sides(padding)
    is_nhwc = order == "NHWC"
    lines, rest = (images, channels) if is_nhwc else (images * channels, 1)

    def problem(
        count: Extent, pixels: tuple[int, int], features: int, axes: slice, around: Any, kind: str
    ) -> Problem:
        own: list[Any] = [(*values[axes], 1)[:2] for values in windows]
        return problem_of(
            operator, count, pixels, features, dtype,
            size=own[0], stride=own[1], dilation=own[2], padding=around, order=kind, lanes=machine.lanes, **options,
        )  # fmt: skip

    around = above, left, below, right
    of_slices = problem(lines * depth, (height, width), rest, slice(1, 3), around, order)
    rows, columns = (int(extent) for extent in of_slices.outputs)
    of_depth = problem(
        lines, (depth, 1), rows * columns * rest, slice(0, 1), (front, 0, back, 0), "NHWC"
    )
    is_flat = not (prod(taps[1:]) * prod(steps[1:]) > 1 or any(around))
    total = wide(dtype)
    if operator != "max" and not is_flat and total is not dtype:  # rounded once
        of_slices = replace(of_slices, result=total)
        of_depth = replace(of_depth, dtype=total, result=dtype)
    by_slices, by_depth = (build(part, None, machine) for part in (of_slices, of_depth))
    results = int(of_depth.outputs[0]), rows, columns
    given, made = (
        TensorType(dtype, (images, *axes, channels) if is_nhwc else (images, channels, *axes))
        for axes in ((depth, height, width), results)
    )

    @tc.program
    def pool_3d(x: tc.typed[given], y: tc.out[made]) -> None:
        slices = x if is_flat else by_slices(x.reshape(*of_slices.given.shape))
        by_depth(slices.reshape(*of_depth.given.shape), out=y.reshape(*of_depth.made.shape))

    return pool_3d
