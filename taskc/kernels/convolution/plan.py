"""How a convolution is computed, as data: on processors `Direct` or `Winograd`. `Packs` is in plan_packs.py,
plans of GPUs are in plan_gpu.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from math import ceil

from taskc import Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.convolution.plan_gpu import (
    Blocks,
    Depthwise,
    DepthwiseStrips,
    Gemm,
    candidates_gpu,
)
from taskc.kernels.convolution.plan_packs import Packs, candidates_of_packs
from taskc.kernels.convolution.plan_widened import Widened, candidates_widened
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.machine_facts import PROCESSOR, Extents
from taskc.kernels.signatures import Extent

# Cycles of Winograd's transforms of a tile's vectors: 12 times 13 sums of pixels, 10 times 10 of results, and 36 loads.
_PIXELS_CYCLES = 12 * 13 + 36 / 2
_RESULTS_CYCLES = 10 * 10 + 36 / 2


@dataclass(frozen=True, slots=True)
class Direct:
    """A tile is `pixels` neighbours of a line by `vectors` * lanes features.

    lines, columns  of results, to a block, and `features`
    depth    channels that are summed at a time, for all tiles of a block; their sums wait in its memory
    near     channels that follow one another before the next tap does
    flat     all rows of an image are one line; a block has a part of it
    order    of blocks: of images, features, lines and columns, the slowest first
    """

    pixels: int
    vectors: int
    lanes: int
    lines: int
    columns: int
    features: int
    depth: int
    near: int
    flat: bool = False
    order: tuple[int, int, int, int] = (0, 1, 2, 3)

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes

    @property
    def own(self) -> Mapping:
        return self.tile(self.pixels)

    def tile(self, pixels: int) -> Mapping:
        """A tile of so many pixels."""
        return repeat(pixels, self.vectors) * spatial(1, self.lanes)

    def lines_of(self, problem: Problem) -> tuple[Extent, Extent]:
        """The lines of pixels of an image, and their length."""
        height, width = problem.slices.extent * problem.extents[0], problem.extents[1]
        return (1, height * width) if self.flat else (height, width)

    def result_lines(self, problem: Problem) -> tuple[Extent, Extent]:
        """The lines of results, and their length if they have every `spread`-th column."""
        lines, columns = problem.outputs
        if self.flat:
            return self.lines_of(problem)
        spread = problem.spread[1]
        return problem.slices.outputs * lines, (columns + spread - 1) // spread

    def channels_of(self, problem: Problem) -> int:
        """Channels of a group, rounded up to whole steps (at least one)."""
        return max(1, ceil(problem.group_channels / self.near)) * self.near

    def misfit(self, problem: Problem) -> str | None:
        """Why it can't be this problem's, if it can't."""
        channels, columns = self.channels_of(problem), self.result_lines(problem)[1]
        if problem.around:
            return "it is for images with zeros around them"
        if self.flat and not problem.is_pointwise:
            return "rows are one line only of filters of one pixel"
        if self.features % self.wide:
            return f"{self.features} features of a block are not tiles of {self.wide}"
        if is_ragged(problem, self.lanes) and self.features < problem.features:
            return "a block has all features where vectors have some of several groups"
        if channels % self.depth or self.depth % self.near:
            return f"{channels} channels are not parts of {self.depth}, in steps of {self.near}"
        if not isinstance(columns, int):
            if self.columns % self.pixels:
                return f"{self.columns} columns of a block are not tiles of {self.pixels}"
        elif self.columns < columns and not self.flat:
            return f"a block has rows whole, and not {self.columns} of {columns} results"
        return None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the products of all blocks, or as reading what these are of, in waves of as many blocks
        as threads: of blocks as they are on average, and at last of a whole one."""
        problem = problem.assumed
        extents: Extents = self.result_lines(problem)
        lines, columns = extents
        below, beside = ceil(lines / self.lines), ceil(columns / self.columns)
        parts = ceil(problem.features / self.features)
        waves = ceil(problem.known_images * below * beside * parts / machine.threads)
        whole, rest = divmod(min(self.columns, columns), self.pixels)
        tiles = whole + bool(rest)
        rows = ceil(problem.features / self.wide)  # of tiles, by features
        largest = self.lines * (self.features // self.wide)  # lines of tiles of a block
        average = lines * rows / max(1, below * parts)
        products = largest * self._products(problem, whole, rest)
        cycles = max(products, self._reading(problem, machine, tiles))
        blocks = 1 + (waves - 1) * average / largest
        return blocks * cycles / PROCESSOR.cycles_per_second

    def _products(self, problem: Problem, whole: int, rest: int) -> float:
        """Cycles of the fused multiply-adds of a line's tiles, so many of them whole, and of beginning and ending them:
        the last tile has the pixels of the rest."""
        fused, latency = PROCESSOR.fused_per_cycle, PROCESSOR.fused_latency
        # Numbers that aren't of the sums' type are converted before they are multiplied.
        converts = problem.dtype is not problem.total

        def of_tile(pixels: int) -> float:
            made = pixels * self.vectors + converts * (pixels + self.vectors)
            return max(made / fused, latency)

        step = whole * of_tile(self.pixels) + (of_tile(rest) if rest else 0)
        tiles = whole + bool(rest)
        channels = max(1, problem.group_channels)
        waits = ceil(channels / self.depth) - 1
        ends = tiles * (PROCESSOR.tile_cycles + self.vectors * self.pixels * (3 + 2 * waits))
        return channels * problem.tap_count * step + ends

    def _reading(self, problem: Problem, machine: Machine, tiles: int) -> float:
        """Cycles of reading filters: first from where they are from block to block, then line by line, then tile by
        tile, from where those in between have left them; and of reading the image for each of the filters' rows."""
        size, channels, rate = problem.dtype.nbytes, problem.group_channels, PROCESSOR.rate
        taps = problem.tap_count
        of_feature = max(1, taps * channels) * size
        part = self.depth * taps * size  # of a feature, summed at a time
        filters = of_feature * self.features
        between = filters if self.order[1] == 1 else of_feature * problem.features
        cycles = filters / rate(between, machine)
        cycles += filters * (self.lines - 1) / rate(part * self.features, machine)
        cycles += filters * self.lines * (tiles - 1) / rate(part * self.wide, machine)
        seen = (self.lines - 1) * problem.stride[0] + problem.size[0]
        wide: int = min(self.columns * problem.stride[1], self.lines_of(problem)[1])
        seen *= wide * size
        rows = self.features // self.wide
        return cycles + seen * channels * rows / rate(seen * self.depth, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Direct]:
        """Fewer features of a block, more lines, and another order of blocks."""
        lines = self.result_lines(problem.assumed)[0]
        for features in (self.wide, self.features):
            for high in (self.lines, ceil(lines / 2)):
                plan = replace(self, features=features, lines=high)
                if plan.misfit(problem) is None:
                    yield plan
                    if features < problem.features:
                        yield replace(plan, order=(0, 2, 3, 1))


@dataclass(frozen=True, slots=True)
class Winograd:
    """Tiles are of 4 x 4 results. Of a GEMM of tiles by features, `tiles` by `vectors` * lanes stay in registers.

    lines     of tiles, to a block, and `features`
    order     of blocks: of images, features and lines, the slowest first
    """

    tiles: int
    vectors: int
    lanes: int
    lines: int
    features: int
    order: tuple[int, int, int] = (0, 1, 2)

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes

    @property
    def own(self) -> Mapping:
        return repeat(self.tiles, self.vectors, 1) * spatial(1, 1, self.lanes)

    def lines_of(self, problem: Problem) -> tuple[int, int]:
        """The lines of tiles of an image, and the tiles of a line."""
        lines, across = (ceil(extent / 4) for extent in problem.outputs)
        return lines, across

    def tiles_of(self, problem: Problem) -> int:
        """The tiles of a block."""
        return self.lines * self.lines_of(problem)[1]

    def vectors_of(self, problem: Problem) -> int:
        """Vectors of channels; of none, too, there is one, of zeros."""
        return max(1, ceil(problem.channels / self.lanes))

    def misfit(self, problem: Problem) -> str | None:
        """Why it can't be this problem's, if it can't."""
        tiles = self.tiles_of(problem)
        if not problem.allows_winograd:
            return "it is for floats and filters of 3 x 3, one by one, and for `exact=False`"
        if self.features % self.wide:
            return f"{self.features} features of a block are not tiles of {self.wide}"
        if self.tiles > tiles:
            return f"a block has {tiles} tiles, and not {self.tiles}"
        return None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the transforms and GEMMs of all blocks, or as reading what these are of."""
        blocks = problem.known_images * self._parts(problem) * self._rows(problem)
        cycles = max(self._computing(problem), self._reading(problem, machine))
        return ceil(blocks / machine.threads) * cycles / PROCESSOR.cycles_per_second

    def _parts(self, problem: Problem) -> int:
        """Blocks beside each other, of features."""
        return ceil(problem.features / self.features)

    def _rows(self, problem: Problem) -> int:
        """Blocks below each other, of lines."""
        return ceil(self.lines_of(problem)[0] / self.lines)

    def _computing(self, problem: Problem) -> float:
        """Cycles of a block's transforms and GEMMs."""
        tiles, vectors = self.tiles_of(problem), self.vectors_of(problem)
        chunks, sums = ceil(tiles / self.tiles), self.tiles * self.vectors
        step = max(sums / PROCESSOR.fused_per_cycle, PROCESSOR.fused_latency)
        gemm = chunks * (vectors * self.lanes * step + PROCESSOR.tile_cycles + sums)
        rows = ceil(self.features / self.wide)
        seen = (4 * self.lines + 2) * (4 * self.lines_of(problem)[1] + 2)
        pixels = seen * self._access(problem.order) + tiles * _PIXELS_CYCLES
        results = 16 * self._access(problem.results) + _RESULTS_CYCLES
        return vectors * pixels + rows * (36 * gemm + tiles * self.vectors * results)

    def _access(self, order: str) -> int:
        """Cycles of loading or storing a vector of channels, lane by lane where they don't lie beside each other."""
        return self.lanes if order == "NCHW" else 1

    def _reading(self, problem: Problem, machine: Machine) -> float:
        """Cycles of reading a block's filters, first from where they are from block to block, then for each further row
        of register tiles, and of storing the transforms of pixels and reading them for each few vectors of features."""
        tiles, steps = self.tiles_of(problem), ceil(self.features / self.wide)
        of_tile = 36 * self.vectors_of(problem) * self.lanes * problem.dtype.nbytes
        filters, pixels = of_tile * self.features, of_tile * tiles
        whole = PROCESSOR.rate(filters * self._parts(problem), machine)
        first = 1 / self._rows(problem) if self.order[1] == 1 else 1
        cycles = filters * (first / whole + (1 - first) / PROCESSOR.rate(filters, machine))
        again = ceil(tiles / self.tiles) - 1
        cycles += again * filters / PROCESSOR.rate((filters / steps + pixels) / 36, machine)
        return cycles + (1 + steps) * pixels / PROCESSOR.rate(pixels, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Winograd]:
        if self.features < problem.features:
            yield replace(self, order=(0, 2, 1))


def candidates(
    problem: Problem, machine: Machine
) -> Iterable[Direct | Packs | Widened | Winograd | Gemm | Blocks | Depthwise | DepthwiseStrips]:
    if not machine.is_processor:
        return candidates_gpu(problem, machine)
    others = candidates_of_winograd(problem, machine) if problem.allows_winograd else ()
    by_packs, widened = candidates_of_packs(problem, machine), candidates_widened(problem, machine)
    if problem.around:
        return chain[Packs | Widened](by_packs, widened)
    return chain(by_packs, widened, candidates_of_direct(problem, machine), others)


def candidates_of_direct(problem: Problem, machine: Machine) -> Iterator[Direct]:
    lanes, near = machine.lanes, _near(problem)
    channels = max(1, ceil(problem.group_channels / near)) * near
    few = [n * near for n in (2, 3, 4) if channels // near % n == 0 and n * near < channels]
    depths = [channels, *few[-1:]]
    least = PROCESSOR.blocks_per_thread * machine.threads
    assumed = problem.assumed
    for pixels, vectors, flat in _tiles(problem, machine):
        wide = vectors * lanes
        features = max(1, ceil(problem.features / wide)) * wide
        whole = Direct(pixels, vectors, lanes, 1, pixels, features, channels, near, flat)
        extents = whole.result_lines(assumed)
        areas = _blocks(extents, pixels, flat)
        if not problem.is_sized:
            areas = [(lines, ceil(columns / pixels) * pixels) for lines, columns in areas]
        parts = [features] if is_ragged(problem, lanes) else _parts_of(features, wide)
        if problem.order == "NCHWc" and problem.group_features <= wide and len(parts) > 1:
            parts = [wide]  # others read pixels of their own, in another place: twice as slow
        finest = min(parts), areas[0]
        for part in parts:
            for lines, columns in areas:
                blocks = ceil(extents[0] / lines) * ceil(extents[1] / columns)
                blocks *= problem.known_images * ceil(features / part)
                if blocks >= least or (part, (lines, columns)) == finest:
                    for depth in depths:
                        yield Direct(
                            pixels, vectors, lanes, lines, columns, part, depth, near, flat
                        )


def candidates_of_winograd(problem: Problem, machine: Machine) -> Iterator[Winograd]:
    lanes, least = machine.lanes, PROCESSOR.blocks_per_thread * machine.threads
    units = max(1, ceil(problem.features / lanes))
    for vectors in (vectors for vectors in (2, 4, 3, 1) if units % vectors == 0):
        most = (machine.registers - 1 - vectors) // vectors
        parts = _parts_of(units * lanes, vectors * lanes)
        for high in (1, 2, 4, 7, 14):
            for features in parts:
                plan = Winograd(1, vectors, lanes, high, features)
                lines, _ = plan.lines_of(problem)
                blocks = problem.known_images * ceil(lines / high) * (units * lanes // features)
                is_finest = (high, features) == (1, min(parts))
                if high > lines or (blocks < least and not is_finest):
                    continue
                for tiles in range(min(most, plan.tiles_of(problem)), 0, -1):
                    yield replace(plan, tiles=tiles)


def is_ragged(problem: Problem, lanes: int) -> bool:
    """Some lanes are of several groups, or of none: it isn't proved block by block which channels they have."""
    return problem.groups > 1 and problem.features % lanes > 0


def _near(problem: Problem) -> int:
    """Channels of a step: of blocked images a block, of others as many as fit without a rest."""
    if problem.order == "NCHWc" and problem.groups == 1:
        return problem.lanes
    most = min(problem.lanes, max(1, problem.group_channels))
    return next(near for near in range(most, 0, -1) if problem.group_channels % near == 0)


def _tiles(problem: Problem, machine: Machine) -> Iterator[tuple[int, int, bool]]:
    """Pixels and vectors, whose sums leave room for a row of filters and a number of the image; and flat or not."""
    blocks = max(1, ceil(problem.features / machine.lanes))
    for vectors in (2, 4, 3, 1, 6) if problem.is_sized else (4, 3, 2, 1):
        is_mixed = problem.groups > 1 and problem.group_features % (vectors * machine.lanes) > 0
        if vectors > blocks or (is_mixed and vectors > 1):
            continue
        most = (machine.registers - 1 - vectors) // vectors
        if is_mixed:
            most //= PROCESSOR.registers_to_pick  # for what lanes take their own channel from
        if not problem.is_sized:
            # Wide tiles leave much of a line to its last one, which goes by few pixels.
            for pixels in (
                pixels for pixels in (12, 8, 6, 4) if pixels <= min(most, 24 // vectors)
            ):
                if problem.is_pointwise:
                    yield pixels, vectors, True
                yield pixels, vectors, False
            continue
        if problem.is_pointwise:
            length = problem.slices.extent * problem.extents[0] * problem.extents[1]
            exact = [pixels for pixels in range(most, 3, -1) if length % pixels == 0]
            yield from ((pixels, vectors, True) for pixels in exact[:3])
            if exact:
                continue
        columns = ceil(problem.outputs[1] / problem.spread[1])
        even = ceil(columns / ceil(columns / most))
        exact = [pixels for pixels in range(most, 0, -1) if columns % pixels == 0]
        few = [pixels for pixels in (4, 8) if pixels < min(most, columns)]
        for pixels in sorted({even, *exact[:2], *few, min(most, columns)}, reverse=True):
            yield pixels, vectors, False


def _parts_of(whole: int, unit: int) -> list[int]:
    """All, or some units: those of one stay in a core's own cache, however deep filters are."""
    return [whole, *(n * unit for n in (1, 4, 16) if n * unit < whole)]


def _blocks(extents: Extents, pixels: int, flat: bool) -> list[Extents]:
    """Lines and columns of a block: some lines whole, or a part of the one that there is."""
    lines, columns = extents
    if flat:
        tiles = ceil(columns / pixels)
        return [(1, n * pixels) for n in sorted({1, *_shares(tiles)})]
    return [(high, columns) for high in _shares(lines)]


def _shares(whole: int) -> list[int]:
    """One, and parts of all that are much the same."""
    return sorted({1, ceil(whole / 8)})
