"""How a convolution is computed on GPUs, as data: by a `Gemm`; of groups by `Blocks` of one, or `Depthwise`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from taskc import DType, Machine, Mapping, repeat, spatial
from taskc.kernels.convolution.gathered import product_of
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.machine_facts import GPU, UNMEASURED_SHARE, Tiles
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors, candidates_gpu as candidates_of_product

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


def candidates_gpu(problem: Problem, machine: Machine) -> Iterable[Gemm | Blocks | Depthwise]:
    if problem.group_channels == 1:
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
