"""Pooling of images, NHWC, NCHW or NCHWc: the largest number of each window, the sum, or the average.

problem.py is what is computed, plan.py how. algorithms.py has these:

lines   on processors, of NHWC and NCHWc: tiles of pixels by channels in vector registers
planes  of NCHW: vectors along the lines of a channel
boxes   on GPUs: boxes of results
whole   where a window is a whole image: a reduction
axes    images of one axis, and of three, by those of two
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import CompileError, DType, KernelDefinition, Machine, ProgramDefinition, f32
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.pooling.algorithms import boxes, lines, of_one_axis, of_three_axes, planes, whole
from taskc.kernels.pooling.plan import Boxes, Lines, Planes, candidates
from taskc.kernels.pooling.problem import Problem, problem_of
from taskc.kernels.signatures import Extent, parameters_of, require_numbers
from taskc.kernels.windows import WINDOWS, Pair, Sides, SixSides, Triple, Windows

__all__ = [
    "Boxes",
    "Lines",
    "Planes",
    "Problem",
    "average_pool",
    "average_pool_1d",
    "average_pool_3d",
    "build",
    "global_average_pool",
    "global_max_pool",
    "max_pool",
    "max_pool_1d",
    "max_pool_3d",
    "sum_pool",
    "sum_pool_1d",
    "sum_pool_3d",
]

Plan = Lines | Planes | Boxes
Definition = KernelDefinition | ProgramDefinition


def max_pool(
    images: Extent,
    height: Extent,
    width: Extent,
    channels: int,
    *,
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    order: str = "NHWC",
    dtype: DType = f32,
    machine: Machine | None = None,
    schedule: Plan | None = None,
) -> Definition:
    """y = the largest number of each window of x, as ONNX's MaxPool.

        NHWC: x[images, height, width, channels]      NCHW: x[images, channels, height, width]

        NCHWc: `taskc.kernels.convolution.blocked(images, channels, height, width)`, on processors

    images, height and width may each be a `taskc.dim`, the latter two on processors, of NHWC and NCHW.

    A window is `size` pixels, `dilation` apart; the next one begins `stride` further, which is `size` if not said.
    These are numbers for both axes, or pairs.

    padding    for all sides, (above and below, beside), or (above, left, below, right): it is never the largest
    ceil_mode  a last window may reach beyond the padding, if it begins in the image or the padding before it
    dtype      floats or integers. NaN is the largest number, as for NumPy's maximum: ONNX's reference has it both ways.
               A window in the padding alone has the least number, -inf of floats
    machine    what it is built for, by its mappings: `tc.machine()`, or `tc.machine("sm_80")`
    """
    return POOLING(**_options("max", 2, **locals()))


def average_pool(
    images: Extent,
    height: Extent,
    width: Extent,
    channels: int,
    *,
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    order: str = "NHWC",
    dtype: DType = f32,
    machine: Machine | None = None,
    schedule: Plan | None = None,
) -> Definition:
    """y = the mean of each window of x, as ONNX's AveragePool; options are those of `max_pool`.

    Numbers of 16 bits are summed in f32. What lies beyond the padding is never counted, and the mean of nothing is NaN.

    count_include_pad  padding is counted, as zeros
    """
    return POOLING(**_options("average", 2, **locals()))


@parameters_of(max_pool)
def sum_pool(**options: Any) -> Definition:
    """y = the sum of each window of x, in which padding is zeros; options are those of `max_pool`.

    Numbers of 16 bits are summed in f32; integers wrap.
    """
    return POOLING(**_options("sum", 2, **options))


def max_pool_1d(
    images: Extent,
    width: Extent,
    channels: int,
    *,
    size: int,
    stride: int | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    order: str = "NHWC",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """`max_pool` of x[images, width, channels], or [images, channels, width]; padding is a number or (left, right)."""
    return of_one_axis(build, **_options("max", 1, **locals()))


def max_pool_3d(
    images: Extent,
    depth: int,
    height: int,
    width: int,
    channels: int,
    *,
    size: Triple,
    stride: Triple | None = None,
    padding: SixSides = 0,
    dilation: Triple = 1,
    ceil_mode: bool = False,
    order: str = "NHWC",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """`max_pool` of x[images, depth, height, width, channels], or [images, channels, depth, height, width].

    padding  for all sides, for each axis, or (front, above, left, back, below, right)
    """
    return of_three_axes(build, **_options("max", 3, **locals()))


def average_pool_1d(
    images: Extent,
    width: Extent,
    channels: int,
    *,
    size: int,
    stride: int | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    order: str = "NHWC",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """`average_pool` of images of one axis, as `max_pool_1d` has them."""
    return of_one_axis(build, **_options("average", 1, **locals()))


def average_pool_3d(
    images: Extent,
    depth: int,
    height: int,
    width: int,
    channels: int,
    *,
    size: Triple,
    stride: Triple | None = None,
    padding: SixSides = 0,
    dilation: Triple = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    order: str = "NHWC",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """`average_pool` of images of three axes, as `max_pool_3d` has them."""
    return of_three_axes(build, **_options("average", 3, **locals()))


@parameters_of(max_pool_1d)
def sum_pool_1d(**options: Any) -> ProgramDefinition:
    """`sum_pool` of images of one axis, as `max_pool_1d` has them."""
    return of_one_axis(build, **_options("sum", 1, **options))


@parameters_of(max_pool_3d)
def sum_pool_3d(**options: Any) -> ProgramDefinition:
    """`sum_pool` of images of three axes, as `max_pool_3d` has them."""
    return of_three_axes(build, **_options("sum", 3, **options))


def global_max_pool(
    images: Extent,
    height: Extent,
    width: Extent,
    channels: int,
    *,
    order: str = "NHWC",
    results: str | None = None,
    dtype: DType = f32,
    machine: Machine | None = None,
) -> Definition:
    """y = the largest number of each channel of an image, as images of one pixel in the order `results`.

    That is x's if not said. NCHW has the shape [images, channels, 1, 1].
    """
    return POOLING(**_options("max", 2, **_whole(**locals())))


@parameters_of(global_max_pool)
def global_average_pool(**options: Any) -> Definition:
    """y = the mean of each channel of an image, as `global_max_pool` has the largest number."""
    return POOLING(**_options("average", 2, **_whole(**options)))


def _whole(height: Extent, width: Extent, **options: Any) -> dict[str, Any]:
    """Options of a pooling whose window is the whole image."""
    return {**options, "height": height, "width": width, "size": (height, width), "stride": 1}


def _options(
    operator: str, axes: int, *, schedule: Plan | None = None, machine: Machine | None, **given: Any
) -> dict[str, Any]:
    """Options of a `Problem`, a plan and the machine, of a call's arguments."""
    machine = machine or tc.machine()
    windows = Windows.of(axes, **{name: given.pop(name) for name in WINDOWS if name in given})
    if axes == 2:
        given |= {"extents": (given.pop("height"), given.pop("width")), "plan": schedule}
    own = {"operator": operator, "windows": windows, "lanes": machine.lanes, "machine": machine}
    return {**given, **own}


def _checked(problem: Problem, plan: Plan | None, machine: Machine) -> Definition | None:
    """A reduction, if windows are whole images."""
    is_blocked = "NCHWc" in (problem.order, problem.results)
    if is_blocked and (problem.order == "NCHW" or not machine.is_processor):
        raise CompileError(
            f"there is no pooling of {problem.order} to {problem.results} on this machine",
            hint="NCHWc is for processors, and from NCHW to there `taskc.pack` goes",
        )
    if not problem.is_sized and (is_blocked or not machine.is_processor):
        raise CompileError("heights and widths are numbers of blocked images, and on this machine")
    if plan is None and problem.is_global and not is_blocked:
        return whole(problem, machine)
    require_numbers("pooling", channels=problem.channels)
    return None


POOLING: KernelOperator[Problem, Plan, Definition] = operator(
    "pooling", problem_of, candidates, {Boxes: boxes, Lines: lines, Planes: planes},
    instead=_checked,
)  # fmt: skip
build = POOLING.build
