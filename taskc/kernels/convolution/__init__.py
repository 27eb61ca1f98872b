"""Convolutions of images, NHWC or NCHW, with filters that are OHWI or OIHW.

problem.py is what is computed, plan.py how. Each other file is an algorithm:

implicit_gemm  on processors, and of groups: products of matrices, one of which is gathered as it is loaded
gemm           on GPUs: a program around a GEMM of taskc.kernels.matmul, with copies of what lies badly (copies.py)
depthwise      where every feature has a channel of its own, so that there is no product of matrices
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import DType, Machine, f16
from taskc.kernels.choose import choose
from taskc.kernels.convolution.copies import shaped_residual, with_copies
from taskc.kernels.convolution.depthwise import depthwise
from taskc.kernels.convolution.gemm import gemm
from taskc.kernels.convolution.implicit_gemm import implicit_gemm
from taskc.kernels.convolution.plan import Blocks, Depthwise, candidates
from taskc.kernels.convolution.problem import Extent, Problem, problem_of
from taskc.kernels.matmul import Tiling

__all__ = ["Problem", "Tiling", "build", "convolution"]


def convolution(
    images: Extent,
    height: int,
    width: int,
    channels: int,
    features: int,
    *,
    size: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    order: str = "NHWC",
    filters: str = "OHWI",
    bias: bool = False,
    scale: bool = False,
    residual: bool = False,
    activation: Any = None,
    dtype: DType = f16,
    total: DType | None = None,
    result: DType | None = None,
    machine: Machine | None = None,
    tiling: Tiling | None = None,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """A kernel of x, w, and what else is asked for: y = activation(scale * (x * w) + bias + residual).

    x * w is their convolution.

        NHWC: x[images, height, width, channels]      OHWI: w[features, rows, columns, channels // groups]
        NCHW: x[images, channels, height, width]      OIHW: w[features, channels // groups, rows, columns]

    y has x's order. An extent of the filter, a stride and a dilation are numbers for both axes, or pairs.

    padding   zeros around: for all sides, (above and below, beside), or (above, left, below, right)
    groups    each has features // groups features, of channels // groups channels
    bias      a further operand, [features]; scale: another one; residual: one more, of y's shape and type
    total     the type that is summed in, and that bias and scale have: f32, or i32 of integers, if not said; scaled
              integers have them in f32
    result    y's; `dtype` if not said, and `total` of integers and tf32
    machine   what it is built for, by its mappings: `tc.machine()`, or `tc.machine("sm_80")`
    tiling    how: of `own`, `depth` and `stages`
    """
    problem = problem_of(
        images, (height, width), channels, features,
        size=size, stride=stride, padding=padding, dilation=dilation, groups=groups, order=order,
        filters=filters, bias=bias, scale=scale, residual=residual, activation=activation, dtype=dtype,
        total=total, result=result,
    )  # fmt: skip
    return build(problem, tiling, machine or tc.machine())


def build(
    problem: Problem, tiling: Tiling | None, machine: Machine
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """Builds it by this tiling, or by the plan of least cost."""
    is_depthwise = problem.group_channels == 1 and tiling is None
    if problem.groups == 1 and problem.channels and not (is_depthwise or machine.is_processor):
        return gemm(problem, machine, tiling)
    if is_depthwise or machine.is_processor or (problem.is_nhwc and problem.is_ohwi):
        return _kernel(problem, tiling, machine)
    inner = replace(problem, is_nhwc=True, is_ohwi=True)
    kernel = _kernel(inner, tiling, machine)

    def convolve(x: Any, w: Any, further: tuple[Any, ...], y: Any) -> None:
        images, weights, _, results = inner.types
        x, w = x.reshape(*images.shape), w.reshape(*weights.shape)
        further = shaped_residual(problem, further, results.shape)
        kernel(x, w, *further, out=y.reshape(*results.shape))

    return with_copies(problem, inner, convolve, machine)


def _kernel(problem: Problem, tiling: Tiling | None, machine: Machine) -> tc.KernelDefinition:
    plan: Blocks | Depthwise
    if tiling is None:
        plan = choose(candidates, problem, machine)
    else:
        plan = Blocks(tiling.own, tiling.depth, tiling.stages)
    if isinstance(plan, Depthwise):
        return depthwise(problem, plan)
    return implicit_gemm(problem, plan, is_processor=machine.is_processor)
