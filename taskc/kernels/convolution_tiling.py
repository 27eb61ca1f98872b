"""Which part of its result a block of a convolution in groups has: pixels by features, as of NHWC."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from taskc import Machine, repeat, spatial
from taskc.kernels.convolution_problem import Problem
from taskc.kernels.matmul import Tiling

# Fragments of a warp, rows by columns, and the warps of a block; and how much of the peak that reaches.
# A fragment of an instruction is 16 x 8, of fused multiply-adds 16 x 32.
_FRAGMENTS = (
    *(((2, 4), (4, 8), 1.0), ((2, 2), (4, 8), 0.95), ((2, 2), (4, 4), 0.8), ((2, 2), (2, 4), 0.6)),
    *(((4, 1), (2, 4), 0.55), ((1, 4), (1, 2), 0.3), ((2, 2), (1, 2), 0.25)),
)
_SQUARES = (
    *(((4, 2), (2, 2), 1.0), ((2, 2), (2, 2), 0.8), ((2, 2), (2, 1), 0.6)),
    *(((2, 2), (1, 1), 0.4), ((2, 1), (1, 1), 0.25)),
)
# Columns of a warpgroup's fragment, warpgroups, and the same, where instructions run beside their workers.
_WARPGROUPS = ((128, 2, 1.5), (64, 2, 1.3), (128, 1, 1.1), (64, 1, 0.9), (32, 1, 0.6))
_LINE = 64  # bytes of each row of what is loaded
_MOST_STAGES = 4


def choose(problem: Problem, machine: Machine) -> Tiling:
    """The tile that takes the least time, if waves of blocks take as long as their tiles are large."""
    if machine.is_processor:
        vectors = 2 if machine.registers == 32 else 1
        return Tiling(repeat(8, vectors) * spatial(1, machine.lanes), 32, 1)
    pixels = problem.pixels if isinstance(problem.pixels, int) else 1 << 17
    rows, columns = pixels, problem.near_features

    def cost(candidate: tuple[Tiling, float]) -> float:
        tiling, speed = candidate
        tall, wide = tiling.own.shape
        blocks = problem.groups * ceil(rows / tall) * ceil(columns / wide)
        waves = ceil(max(1, blocks / machine.threads))
        return waves * tall * wide / speed

    return min(_candidates(problem, machine), key=cost)[0]


def _candidates(problem: Problem, machine: Machine) -> Iterator[tuple[Tiling, float]]:
    rows = machine.instructions(problem.dtype, problem.dtype, problem.total)
    row = next(iter(rows), None)
    fragment = row.accumulator_fragment if row else repeat(4, 4) * spatial(4, 8)
    size, least = problem.dtype.nbytes, row.shape[2] if row else 8
    # Of the deepest steps, those that leave the fewest channels to be filled up.
    depths = (least * 2, least) if row and least * 2 * size <= _LINE else (least,)
    depth = min(depths, key=lambda depth: ceil(problem.near_channels / depth) * depth)
    tiles = [
        (spatial(*warps) * repeat(*fragments) * fragment, speed)
        for warps, fragments, speed in (_FRAGMENTS if row else _SQUARES)
    ]
    beside = {row.shape[1]: row for row in rows if row.asynchronous}
    for columns, count, speed in _WARPGROUPS if beside else ():
        tiles.append((spatial(count, 1) * beside[columns].accumulator_fragment, speed))
    for own, speed in tiles:
        fits = machine.near // (depth * sum(own.shape) * size)
        yield Tiling(own, depth, min(_MOST_STAGES, fits)), speed
