"""How products with quantized weights are computed, as data.

A plan's type is its algorithm: `Panels` of processors, `Strips` and `Tiles` of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import ceil, gcd, lcm

from taskc import Machine, Mapping, f32, repeat, spatial
from taskc.dataclass import dataclass
from taskc.ir.target import WarpInstruction
from taskc.kernels.machine_facts import GPU, PROCESSOR
from taskc.kernels.owners import VectorTile
from taskc.kernels.quantized.problem import Problem
from taskc.kernels.signatures import known

_DEPTH = 128  # weights of a column whose floats, and the part of a beside them, stay in the nearest cache
_PANELS = (16, 8, 4, 2, 1)
_ROWS = (16, 12, 8, 6, 4, 3, 2, 1)
_MOST_TALL = 128


@dataclass(frozen=True, slots=True)
class Panels(VectorTile):
    """A tile is `rows` x `vectors` * lanes; a block has as many tiles as `tall` rows take, of several panels.

    depth   weights of a column that are multiplied at a time; their sums wait in memory for the next ones
    panels  of a block, which share a part of a
    """

    rows: int
    vectors: int
    tall: int
    lanes: int
    depth: int
    panels: int

    @property
    def widens(self) -> bool:
        """Whether a block keeps weights as floats, for several tiles."""
        return self.tall > self.rows

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Products of all tiles and, of each panel once, the conversion of its weights: in waves of blocks."""
        height, width = known(problem.m), self.wide * self.panels
        products = PROCESSOR.beside(
            self.rows * self.vectors / PROCESSOR.fused_per_cycle,
            (self.rows + self.vectors) / PROCESSOR.loads_per_cycle,
        )
        if machine.registers < 32:  # before AVX-512, elements of a take instructions of their own
            products += self.rows / 2
        converted = 3 * self.vectors * PROCESSOR.widening_cycles
        latency = PROCESSOR.fused_latency
        step = max(PROCESSOR.beside(products, latency), converted / 2) + converted / 4
        waiting = self.rows * self.vectors * PROCESSOR.panel_tile_cycles / self.depth
        # Each block copies its part of a, which lies in short runs.
        copied = self.tall * f32.nbytes / PROCESSOR.copied_bytes_per_cycle
        tiles = ceil(self.tall / self.rows)
        cycles = problem.k * (self.panels * tiles * (step + waiting) + copied)
        blocks = ceil(height / self.tall) * ceil(problem.n / width)
        return float(ceil(blocks / machine.threads) * cycles) / PROCESSOR.cycles_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Panels]:
        for panels in _PANELS:
            for depth in {self.depth, 2 * self.depth}:
                yield replace(self, panels=panels, depth=depth)


@dataclass(frozen=True, slots=True)
class Tiles:
    """own  who has which part of a block's result
    depth   steps of k that go through shared memory at a time
    stages  how many of these it holds
    """

    own: Mapping
    depth: int
    stages: int

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Waves of blocks take as long as their tiles are large."""
        tall, wide = self.own.shape
        blocks = ceil(known(problem.m) / tall) * ceil(problem.n / wide)
        step = max(
            tall * wide / GPU.byte_products_per_cycle, (tall + wide) / GPU.operand_bytes_per_cycle
        )
        step = step * problem.dtype.nbytes + wide / GPU.unpacked_before_per_cycle
        cycles = ceil(blocks / machine.threads) * problem.k * step
        return cycles / GPU.cycles_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Tiles]:
        for stages in (2, 3, 4):
            yield replace(self, stages=stages)


COLUMNS = 64  # of a warp's strip: eight weights of a word are for eight fragments
_TALLEST = 2  # fragments of rows, beside as many sums of a group
_STRIP_STAGES, _STRIP_WARPS = 4, (2, 4, 1)
_STRIP_DEPTHS = (64, 128, 32)  # of as long ones the one whose blocks have most company


@dataclass(frozen=True, slots=True)
class Strips:
    """A block has `tall` fragments of rows, and 64 columns for each of its warps.

    depth   steps of k that go through shared memory at a time, of one group
    stages  how many of these it holds
    parts   of k, each summed by blocks of its own (split-k)
    """

    tall: int
    warps: int
    depth: int
    stages: int
    parts: int

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory or the busiest multiprocessor takes: each row of blocks unpacks all weights."""
        tall, wide = 16 * self.tall, COLUMNS * self.warps
        blocks = ceil(known(problem.m) / tall) * (problem.n // wide) * self.parts
        steps = ceil(blocks / machine.threads) * problem.k / self.parts
        products = tall * wide * problem.dtype.nbytes / GPU.byte_products_per_cycle
        cycles = steps * (products + wide / GPU.unpacked_per_cycle)
        busy = min(1.0, blocks * self.warps / (GPU.reading_warps * machine.threads))
        read = problem.k * problem.n * problem.right.bits / 8 / GPU.bytes_per_second / busy
        further = 0.0
        if self.parts > 1:
            moved = 2 * self.parts * known(problem.m) * problem.n * f32.nbytes
            further = (
                moved / (machine.threads * GPU.result_bytes_per_cycle) + GPU.next_kernel_cycles
            )
        return max(read, cycles / GPU.cycles_per_second) + further / GPU.cycles_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Strips]:
        for stages in (3, 4, 6):
            yield replace(self, stages=stages)


def instruction(problem: Problem, machine: Machine) -> WarpInstruction | None:
    """The one that `Strips` multiplies by."""
    dtype = problem.dtype
    rows = machine.instructions(dtype, dtype, f32) if dtype.bits == 16 else ()
    fitting = [row for row in rows if isinstance(row, WarpInstruction) and row.shape == (16, 8, 16)]
    return fitting[0] if fitting else None


def _strips(problem: Problem, machine: Machine) -> Iterator[Strips]:
    """Where all columns, groups and steps are whole."""
    n, k, group, right = problem.n, problem.k, problem.group, problem.right
    if right.bits != 4 or right.is_float or instruction(problem, machine) is None or not n or not k:
        return
    depths = [size for size in _STRIP_DEPTHS if k % size == 0 and group % size == 0]
    for warps, depth in product(_STRIP_WARPS, depths):
        if n % (COLUMNS * warps) == 0:
            for tall in range(1, _TALLEST + 1):
                for parts in range(1, min(GPU.most_parts, k // depth) + 1):
                    if k // depth % parts == 0 and (tall == 1 or known(problem.m) > 16):
                        yield Strips(tall, warps, depth, _STRIP_STAGES, parts)


def candidates(problem: Problem, machine: Machine) -> Iterable[Panels | Tiles | Strips]:
    if machine.is_processor:
        return _panels(problem, machine)
    return [*_strips(problem, machine), *_tiles(problem, machine)]


def _panels(problem: Problem, machine: Machine) -> Iterator[Panels]:
    height = max(1, known(problem.m))
    depth = _depth(problem)
    for rows in _ROWS:
        if rows > min(height, machine.registers // 2):
            continue
        vectors = min(4, machine.registers // 2 // rows)
        tall = min(ceil(height / rows) * rows, max(rows, _MOST_TALL // rows * rows))
        for panels in _PANELS:
            if panels == 1 or panels * vectors * machine.lanes <= problem.n:
                yield Panels(rows, vectors, tall, machine.lanes, depth, panels)


def _depth(problem: Problem) -> int:
    """Whole groups, and of shorter ones several."""
    whole = lcm(problem.group, 8 // gcd(problem.right.bits, 8))
    return whole * max(1, _DEPTH // whole)


def _tiles(problem: Problem, machine: Machine) -> Iterator[Tiles]:
    rows = machine.instructions(problem.dtype, problem.dtype, f32)
    fragments = [row.accumulator_fragment for row in rows if isinstance(row, WarpInstruction)]
    for fragment in fragments[:1]:
        for warps, parts in (((2, 2), (4, 4)), ((2, 4), (2, 4)), ((1, 4), (1, 4))):
            yield Tiles(spatial(*warps) * repeat(*parts) * fragment, 32, 2)
    for row in rows:  # whose operands, of 16 bits, lie as they are loaded
        if row.asynchronous and row.shape[1] == 128 and problem.dtype.bits == 16:
            yield Tiles(spatial(2, 1) * repeat(2, 1) * row.accumulator_fragment, 64, 2)
    if not fragments:
        yield Tiles(spatial(16, 16) * repeat(4, 4), 16, 2)
