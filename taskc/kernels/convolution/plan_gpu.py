"""How a convolution is computed on GPUs, as data: by a `Gemm`; of groups by `Blocks` of one, or of one channel each.

Around a convolution on GPUs: copies of operands that lie badly, and images that are gathered as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from math import ceil, gcd, prod
from typing import Any

import taskc as tc
from taskc import DType, Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.ir.target import WARP
from taskc.kernels import matmul
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.machine_facts import GPU, UNMEASURED_SHARE, Tiles
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors, candidates_gpu as candidates_of_product
from taskc.kernels.matmul.problem import Gathered
from taskc.kernels.owners import power
from taskc.kernels.padding import pad, pitch
from taskc.kernels.signatures import Extent, Function, Value, Values
from taskc.kernels.transpose import transpose

# --- Copies around a convolution on GPUs of what doesn't lie as its kernels want it -------------
# These are images and results that are NCHW, filters that are OIHW, and channels that don't fill whole accesses. A copy
# takes as long as reading and writing it once.


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

    def transposed(
        x: Value, shape: tuple[Extent, ...], dtype: DType, y: Value | None = None
    ) -> Any:
        """The last two axes of three exchanged."""
        first, rows, columns = shape
        results: Value = tc.empty(dtype[first, columns, rows]) if y is None else y
        turn = transpose(shape, (0, 2, 1), dtype=dtype, machine=machine)
        turn(x.reshape(*shape), out=results.reshape(first, columns, rows))
        return results

    def padded(x: Value, rows: Extent) -> Any:
        """Zeros behind the channels, up to whole accesses."""
        if channels == problem.channels:
            return x
        y = tc.empty(problem.dtype[rows, channels])
        copy = pad(own(rows), problem.channels, problem.dtype, machine, channels)
        copy(x.reshape(rows, problem.channels), out=y)
        return y

    def steps(x: Value, w: Value, further: Values, y: Value) -> None:
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
    """The further operands, with the residual, if there is one, in this shape."""
    return (*further[:-1], further[-1].reshape(*shape)) if problem.residual else further


def own(extent: Any) -> Any:
    """An extent of a kernel that has this one from what it is given."""
    return extent if isinstance(extent, int) else tc.dim("rows")


# --- A convolution as a GEMM, whose left operand is never laid out in memory --------------------
#     y[pixel, feature] = x[pixel, q] * w[feature, q]
#
# Pixels are numbered through all images, and q goes through the taps of a filter, and through the channels of
# each. Filters and results are matrices as they lie; what a step takes of x is gathered from where the filter
# covers it, with zeros for the padding. Where a filter covers one pixel, x is a matrix, too.


def as_nhwc(problem: Problem) -> Problem:
    """The convolution of copies that are NHWC and OHWI, of two axes."""
    return replace(problem, order="NHWC", results="NHWC", filters="OHWI", axes=2, axes_given=None)


def as_it_lies(problem: Problem) -> Problem:
    """The convolution of copies that lie as a GEMM wants them."""
    return replace(as_nhwc(problem), channels=_whole_accesses(problem))


@cache
def product_of(problem: Problem) -> matmul.Problem:
    """The product of x as it is, and of w and y as matrices; of x, too, where a filter covers one pixel."""
    inner = as_it_lies(problem)
    pixels = own(inner.pixels) if inner.is_pointwise else inner.pixels
    return matmul.Problem(
        m=pixels, n=inner.features, k=inner.deep, dtype=inner.dtype, right=inner.dtype,
        total=inner.total, result=inner.result, transpose_b=True, bias=inner.bias,
        scale=inner.scale, residual=inner.residual, activation=inner.activation,
        gathered=None if inner.is_pointwise else _gathered(inner),
    )  # fmt: skip


def _whole_accesses(problem: Problem) -> int:
    """The channels with those that fill up accesses of 8 bytes, where that is enough, or of 16."""
    size = problem.dtype.nbytes
    if problem.channels * size <= 8 and not problem.is_pointwise:
        return 8 // size
    return int(pitch(problem.channels, problem.dtype))


def _travels_in_bulk(problem: Problem) -> bool:
    """Whether bulk copies of pixels take what a filter covers: whole lines of channels, and taps that aren't far."""
    reach = max(problem.covered[0], problem.covered[1], *problem.padding)
    return (
        problem.channels * problem.dtype.nbytes % 128 == 0
        and problem.outputs[1] > 1
        and reach <= 128
    )


def _gathered(problem: Problem) -> Gathered:
    type_ = problem.types[0]
    return Gathered(type_, partial(_load, problem), _travels_in_bulk(problem))


def _load(problem: Problem, tall: int, depth: int) -> Function:
    """The surroundings of so many pixels, for some steps of q: a function of x, the first pixel and the first step."""
    channels, across, deep = problem.channels, problem.size[1], problem.deep
    outputs = problem.outputs[0] * problem.outputs[1]
    row_of, column_of = problem.taps
    is_of_one_tap = channels % depth == 0

    # Where the j-th of the steps from q on is. Of one tap, that is the same for all of them.

    tap = tc.function(lambda q, j: q // channels if is_of_one_tap else (q + j) // channels)

    channel = tc.function(lambda q, j: q % channels + j if is_of_one_tap else (q + j) % channels)

    @tc.function
    def covered(x: Value, pixel: Value, q: Value, j: Value) -> Any:
        """The numbers around a pixel that the filter covers."""
        return (
            x[
                pixel // outputs,
                row_of(pixel, tap(q, j) // across),
                column_of(pixel, tap(q, j) % across),
                channel(q, j),
            ]
            if q + j < deep
            else 0
        )

    return tc.function(
        lambda x, row, q: tc.load((tall, depth), lambda i, j: covered(x, row + i, q, j), fill=0)
    )


_STAGES = 4
_MOST_COLUMNS = 128  # of a warpgroup's instruction
# Tiles, what groups have in their place, and the share of that.
_TALL = (
    (((1, 4), (1, 4)), ((4, 1), (2, 4)), 0.55),
    (((1, 2), (1, 1)), ((2, 1), (1, 1)), 0.25),
)


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product of what a filter covers and the filters, by this tiling."""

    tiling: Tiling | Vectors

    def cost(self, problem: Problem, machine: Machine) -> float:
        return self.tiling.cost(product_of(problem), machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Gemm]:
        for tiling in self.tiling.variations(product_of(problem), machine):
            yield Gemm(tiling)


@dataclass(frozen=True, slots=True)
class Blocks:
    """own     who has which part of a block's result, of one group: pixels by features as of NHWC
    depth   of what a filter covers, steps that are loaded together
    stages  of these loads, how many there is memory for
    """

    own: Mapping
    depth: int
    stages: int

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Waves of blocks take as long as their tiles are large."""
        tall, wide = self.own.shape
        blocks = ceil(problem.known_pixels / tall) * ceil(problem.group_features / wide)
        waves = ceil(max(1, problem.groups * blocks / machine.threads))
        share = _shares(problem.dtype, problem.total, machine).get(self.own, UNMEASURED_SHARE)
        cycles = waves * tall * wide / share * max(1, problem.deep)
        return cycles * problem.dtype.nbytes / (GPU.byte_products_per_cycle * GPU.cycles_per_second)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Blocks]:
        for stages in range(self.stages, 1, -1):
            yield replace(self, stages=stages)


# Bytes of an access, fewer than the widest: with those, a worker's registers are too many.
_STRIP_BYTES = 8
_MOST_COLUMNS_OF_STRIPS = 16  # of a filter, each written out


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A worker has `each` results beside each other, of pixels as of NHWC, and there are so many warps."""

    warps: int
    each: int
    lanes: int

    def own(self, problem: Problem) -> Mapping:
        if problem.is_nhwc:
            return spatial(self.warps, 1) * repeat(self.each, 1) * spatial(1, self.lanes)
        return spatial(1, self.warps) * repeat(1, self.each) * spatial(1, self.lanes)

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as reading and writing."""
        made = problem.known_pixels * problem.features * problem.dtype.nbytes
        return made / GPU.bytes_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Depthwise]:
        for warps in (4, 2, 8):
            for each in (4, 1, 2, 8):
                yield replace(self, warps=warps, each=each)


@dataclass(frozen=True, slots=True)
class DepthwiseStrips:
    """Depthwise, of NHWC: a worker has a strip of `wide` pixels of a row, of as many channels as one access.

    down, across, beside  how many of such strips a block has: of rows, of a row, and of a pixel's channels
    """

    wide: int
    channels: int
    down: int
    across: int
    beside: int

    def own(self, wide: int) -> Mapping:
        """Who has what of strips of so many pixels: of [row, strip, pixel of it, channel]."""
        strips = spatial(self.down, self.across, 1, self.beside)
        return strips * repeat(1, 1, wide, self.channels)

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as reading and writing."""
        made = problem.known_pixels * problem.features * problem.dtype.nbytes
        return made / GPU.bytes_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[DepthwiseStrips]:
        for wide in (4, 2, 8):
            for channels in (1, 2, 4, 8):
                if problem.features % channels == 0 and channels <= self.channels * 2:
                    yield _strips(problem, wide, channels)


def _strips(problem: Problem, wide: int, channels: int) -> DepthwiseStrips:
    """As many strips of channels, of a row and of rows as a block has workers."""
    high, broad = problem.outputs
    beside = min(WARP, power(ceil(problem.features / channels)))
    left, count = GPU.block_workers // beside, ceil(broad / wide)
    across = ceil(count / ceil(count / left))
    return DepthwiseStrips(wide, channels, min(high, max(1, left // across)), across, beside)


def candidates_gpu(
    problem: Problem, machine: Machine
) -> Iterable[Gemm | Blocks | Depthwise | DepthwiseStrips]:
    if problem.group_channels == 1:
        is_narrow = problem.size[1] <= _MOST_COLUMNS_OF_STRIPS and prod(problem.outputs) > 0
        if problem.is_nhwc and problem.group_features == 1 and is_narrow:
            channels = gcd(_STRIP_BYTES // problem.dtype.nbytes, problem.features)
            return [_strips(problem, 4, channels)]
        return [Depthwise(4, 4, machine.lanes)]
    if problem.groups == 1 and problem.channels:
        return map(Gemm, candidates_of_product(product_of(problem), machine))
    return candidates_of_blocks(problem, machine)


def candidates_of_blocks(problem: Problem, machine: Machine) -> Iterator[Blocks]:
    row = next(iter(machine.instructions(problem.dtype, problem.dtype, problem.total)), None)
    size, least = problem.dtype.nbytes, row.shape[2] if row else 8
    # Of the deepest steps, those that leave the fewest channels to be filled up.
    depths = (least * 2, least) if row and least * 2 * size <= GPU.step_bytes else (least,)
    depth = min(depths, key=lambda depth: ceil(problem.group_channels / depth) * depth)
    for own in _shares(problem.dtype, problem.total, machine):
        fits = machine.fast_memory // (depth * sum(own.shape) * size)
        yield Blocks(own, depth, min(_STAGES, fits))


@cache
def _shares(dtype: DType, total: DType, machine: Machine) -> dict[Mapping, float]:
    """Who has what of a block, and its share of the peak."""
    rows = machine.instructions(dtype, dtype, total)
    fragment = rows[0].accumulator_fragment if rows else repeat(4, 4) * spatial(4, 8)
    shares = _of_groups(GPU.instruction_tiles if rows else GPU.fused_tiles)
    found = {
        spatial(*warps) * repeat(*fragments) * fragment: share
        for (warps, fragments), share in shares.items()
    }
    asynchronous = {row.shape[1]: row for row in rows if row.asynchronous}
    for (columns, count), share in GPU.warpgroup_tiles.items() if asynchronous else ():
        if columns <= _MOST_COLUMNS:
            found[spatial(count, 1) * asynchronous[columns].accumulator_fragment] = share
    return found


def _of_groups(shares: Tiles) -> Tiles:
    """Features of a group are few: of the tiles that are broad and low, two are tall instead."""
    tall = {tile: (other, share) for tile, other, share in _TALL}
    return dict(tall.get(tile, (tile, share)) for tile, share in shares.items())
