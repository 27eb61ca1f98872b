"""Convolutions of images, NHWC, NCHW or NCHWc, with filters that are OHWI or OIHW.

problem.py is what is computed, plan.py and plan_gpu.py how. The algorithms (gpu.py has those of GPUs):

direct         on processors: tiles of pixels by features in vector registers, filters packed as they are read
widened        there, too: depthwise ones of narrow numbers, which are copied in the type of the sums
packs          there, too: of 8- and 16-bit numbers, by instructions that multiply packs of them
winograd       there, too: 3 x 3 by fewer products, where sums need not be of products of what is given
pointwise      there, of NCHW images and filters of one pixel: a product of matrices (reordered.py)
reordered      there, of NCHW images whose groups are small: by way of blocked ones, or of NHWC
gemm           on GPUs: a program around a GEMM of taskc.kernels.matmul, with copies of what lies badly (plan_gpu.py)
implicit_gemm  on GPUs, of groups: products of matrices, one of which is gathered as it is loaded
depthwise      on GPUs, where every feature has a channel of its own, so that there is no product of matrices
strips         the same of NHWC, with as many features as channels
"""

from __future__ import annotations

from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, Machine, f16, f32
from taskc.kernels.convolution.direct import direct
from taskc.kernels.convolution.gpu import depthwise, gemm, implicit_gemm, strips
from taskc.kernels.convolution.packs import packs
from taskc.kernels.convolution.plan import Direct, Winograd, candidates
from taskc.kernels.convolution.plan_gpu import (
    Blocks,
    Depthwise,
    DepthwiseStrips,
    Gemm,
    as_nhwc,
    shaped_residual,
    with_copies,
)
from taskc.kernels.convolution.plan_packs import Packs
from taskc.kernels.convolution.plan_widened import Widened
from taskc.kernels.convolution.problem import Problem, problem_of
from taskc.kernels.convolution.reordered import is_product, pointwise, reordered, reordered_problem
from taskc.kernels.convolution.widened import widened
from taskc.kernels.convolution.winograd import winograd
from taskc.kernels.images import blocked
from taskc.kernels.machine_facts import work_of_products
from taskc.kernels.matmul import Tiling
from taskc.kernels.matmul.plan_gpu import Vectors
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.signatures import Extent, Value, Values, defaults_of, wide
from taskc.kernels.windows import Pair, Sides, SixSides, Triple
from taskc.tune.choose import choose
from taskc.tune.space import Work

__all__ = [
    "Direct",
    "Packs",
    "Problem",
    "Tiling",
    "Widened",
    "Winograd",
    "blocked",
    "build",
    "convolution",
    "convolution_1d",
    "convolution_3d",
]

Plan = Direct | Packs | Widened | Winograd | Gemm | Blocks | Depthwise | DepthwiseStrips | Tiling
Definition = tc.KernelDefinition | tc.ProgramDefinition


def convolution(
    images: Extent,
    height: Extent,
    width: Extent,
    channels: int,
    features: int,
    *,
    size: Pair = 3,
    stride: Pair = 1,
    padding: Sides = 0,
    dilation: Pair = 1,
    groups: int = 1,
    order: str = "NHWC",
    results: str | None = None,
    filters: str = "OHWI",
    transposed: bool = False,
    output_padding: Pair = 0,
    packed: bool = False,
    exact: bool = True,
    around: int = 0,
    bias: bool = False,
    scale: bool = False,
    residual: bool = False,
    in_place: bool = False,
    activation: Any = None,
    dtype: DType = f16,
    right: DType | None = None,
    total: DType | None = None,
    result: DType | None = None,
    machine: Machine | None = None,
    schedule: Direct | Packs | Widened | Winograd | None = None,
    tiling: Tiling | None = None,
) -> Definition:
    """A kernel of x, w, and what else is asked for: y = activation(scale * (x * w) + bias + residual).

    x * w is their convolution.

        NHWC: x[images, height, width, channels]      OHWI: w[features, rows, columns, channels // groups]
        NCHW: x[images, channels, height, width]      OIHW: w[features, channels // groups, rows, columns]

        NCHWc: `blocked(images, channels, height, width)`, on processors; `taskc.pack` puts an array of NCHW there

        IOHW: w[channels, features // groups, rows, columns], of transposed ones

    images, height and width may each be a `taskc.dim`, the latter two on processors, of NHWC and NCHW, and not of
    transposed ones: Winograd's sums are not for them.

    y has the order `results`, which is x's if not said. An extent of the filter, a stride and a dilation are numbers
    for both axes, or pairs.

    padding   zeros around: for all sides, (above and below, beside), or (above, left, below, right)
    transposed  y is what x would be made of: y[i * stride + r * dilation - padding] sums x[i] * w[r], on processors;
              it has `output_padding` more rows below and columns to the right
    packed    w comes as `kernel.pack(w)` makes it, on processors: a call of others packs it again each time
    in_place  the residual is no operand, but what y holds before, on processors
    exact     sums are of products of what is given; False allows Winograd's, faster and less precise (winograd.py)
    around    the number that lies around images, in place of 0, on processors: of those of bytes, not of all groups
    groups    each has features // groups features, of channels // groups channels
    bias      a further operand, [features]; scale: another one; residual: one more, of y's shape and type
    right     w's type, on processors; x's if not said: i8 beside u8 is what machines have instructions for
    total     the type that is summed in, and that bias and scale have: f32, or i32, of narrower operands, if not
              said; scaled integers have them in f32
    result    y's: `total` where that is said; else `dtype`, or of integers and tf32 that of the sum
    machine   what it is built for, by its mappings: `tc.machine()`, `tc.machine("avx2")`, `tc.machine("sm_80")`
    schedule  how, on a processor; `tiling`: elsewhere, of `own`, `depth` and `stages`
    """
    return convolution_of(extents=(height, width), **_options(locals()))


def convolution_1d(
    images: Extent,
    width: Extent,
    channels: int,
    features: int,
    *,
    size: int = 3,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    order: str = "NHWC",
    filters: str = "OHWI",
    output_padding: int = 0,
    machine: Machine | None = None,
    schedule: Direct | Packs | None = None,
    **options: Any,
) -> Definition:
    """A convolution on processors of images of one axis: x[images, width, channels], or [images, channels, width].

    padding  zeros on each side, or (left, right). All else is as in `convolution`, without the axis of height
    """
    return convolution_of(extents=(width,), **_options(locals()))


def convolution_3d(
    images: Extent,
    depth: int,
    height: Extent,
    width: Extent,
    channels: int,
    features: int,
    *,
    size: Triple = 3,
    stride: Triple = 1,
    padding: SixSides = 0,
    dilation: Triple = 1,
    order: str = "NHWC",
    filters: str = "OHWI",
    transposed: bool = False,
    output_padding: Triple = 0,
    machine: Machine | None = None,
    schedule: Direct | Packs | None = None,
    **options: Any,
) -> Definition:
    """A convolution on processors of images of three axes: x[images, depth, height, width, channels], or as NCHW
    [images, channels, depth, height, width].

    padding  zeros on all sides, of each axis, or (front, above, left, back, below, right). All else is as in
             `convolution`, with the axis of depth before that of height
    """
    return convolution_of(extents=(depth, height, width), **_options(locals()))


def convolution_of(
    images: Extent,
    extents: tuple[Extent, ...],
    channels: int,
    features: int,
    *,
    is_constant: bool = False,
    machine: Machine | None = None,
    **options: Any,
) -> Definition:
    """A convolution of images of one, two or three axes, with the options of `convolution`.

    is_constant  filters are the same at all calls, and come packed on machines that pack them
    """
    machine = machine or tc.machine()
    options = {**defaults_of(convolution), **options, "machine": machine, "lanes": machine.lanes}
    options["packed"] |= is_constant and machine.is_processor
    sizes = {"images": images, "extents": extents, "channels": channels, "features": features}
    return CONVOLUTION(**sizes, **options)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call without the extents of images."""
    options = {**given.pop("options", {}), **given}
    return {name: options[name] for name in options if name not in ("depth", "height", "width")}


def is_widened(dtype: DType, machine: Machine) -> bool:
    """Whether images and filters are better converted to the type of sums once than at each of a filter's taps."""
    return wide(dtype) is not dtype and not machine.instructions(dtype, dtype, f32)


def _checked(problem: Problem, plan: Plan | None, machine: Machine) -> Definition | None:
    if machine.is_processor:
        return _by_way_of_another(problem, plan, machine)
    if problem.around:
        raise CompileError("zeros lie around images on this machine")
    if (
        problem.packed
        or problem.in_place
        or problem.transposed
        or problem.order == "NCHWc"
        or problem.results != problem.order
    ):
        raise CompileError(
            "this machine takes filters and residuals as they are, and images and results of one order, NHWC or NCHW"
        )
    if problem.right is not problem.dtype:
        raise CompileError("this machine takes filters and images of one type")
    if problem.axes == 3:
        raise CompileError("this machine takes images of one axis or two")
    if not problem.is_sized:
        raise CompileError("heights and widths are numbers on this machine")
    return None


def _by_way_of_another(
    problem: Problem, plan: Plan | None, machine: Machine
) -> tc.ProgramDefinition | None:
    """By images in another order, or a product of matrices, where a processor takes these."""
    if problem.has_far_channels and not isinstance(plan, Winograd | Packs):
        inner = reordered_problem(problem)
        chosen = plan or choose(CONVOLUTION, inner, machine)
        assert isinstance(chosen, Direct | Widened)
        return reordered(problem, chosen, machine)
    return pointwise(problem, machine) if plan is None and is_product(problem) else None


def _as_tiled(problem: Problem, plan: Tiling, machine: Machine) -> Definition:
    """By a caller's tiling of blocks."""
    if problem.groups == 1 and problem.channels > 0:
        return gemm(problem, Gemm(plan), machine)
    return _by_groups(problem, Blocks(plan.own, plan.depth, plan.stages), machine)


def _by_groups(problem: Problem, plan: Blocks, machine: Machine) -> Definition:
    if problem.is_nhwc and problem.is_ohwi:
        return implicit_gemm(problem, plan)
    inner = as_nhwc(problem)
    kernel = implicit_gemm(inner, plan)

    def convolve(x: Value, w: Value, further: Values, y: Value) -> None:
        images, weights, _, results = inner.types
        x, w = x.reshape(*images.shape), w.reshape(*weights.shape)
        further = shaped_residual(problem, further, results.shape)
        kernel(x, w, *further, out=y.reshape(*results.shape))

    return with_copies(problem, inner, convolve, machine)


def _work(problem: Problem, machine: Machine) -> Work:
    x, w, further, y = problem.types
    taps = problem.size[0] * problem.size[1] * problem.slices.size
    # Transposed, each number of an image is in so many results; else each result is of so many numbers.
    places = x if problem.transposed else y
    known = prod(n for n in places.shape if isinstance(n, int))
    others = problem.group_features if problem.transposed else problem.group_channels
    products = known * taps * others
    multiplied = problem.dtype, problem.right, problem.total
    return work_of_products(products, multiplied, (x, w, *further, y), machine)


CONVOLUTION: KernelOperator[Problem, Plan, Definition] = operator(
    "convolution", problem_of, candidates,
    {
        Blocks: _by_groups, Depthwise: depthwise, DepthwiseStrips: strips, Direct: direct, Gemm: gemm, Packs: packs,
        Tiling: _as_tiled, Widened: widened, Winograd: winograd,
    },
    instead=_checked, work=_work, kinds=(Vectors,),
)  # fmt: skip
build = CONVOLUTION.build
