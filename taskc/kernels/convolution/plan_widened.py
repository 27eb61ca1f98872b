"""How a depthwise convolution of narrow numbers is computed on processors, as data: `Widened`."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from taskc import Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.machine_facts import PROCESSOR, Extents


@dataclass(frozen=True, slots=True)
class Widened:
    """A tile is `pixels` neighbours of a line by a vector of channels; a block has `lines` of them whole."""

    pixels: int
    lines: int
    lanes: int

    def tile(self, pixels: int) -> Mapping:
        return repeat(pixels, 1) * spatial(1, self.lanes)

    def seen(self, problem: Problem) -> tuple[int, int, int]:
        """A block's copy: lines, columns, channels."""
        lines, columns = self.lines, problem.outputs[1]
        assert isinstance(columns, int)
        (down, across), (high, wide) = problem.stride, problem.covered
        return (lines - 1) * down + high, (columns - 1) * across + wide, self.lanes

    def misfit(self, problem: Problem) -> str | None:
        """Why it can't be this problem's, if it can't."""
        if not problem.is_sized or problem.axes != 2 or problem.transposed:
            return "it is for images of two axes whose extents are numbers, and not transposed"
        if not 1 < problem.groups == problem.channels == problem.features:
            return "it is for channels that have a filter each"
        if problem.order == "NCHW" or problem.dtype.bits >= problem.total.bits:
            return "it is for narrow numbers whose channels lie together"
        return None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the copies and products of all blocks."""
        rows, columns = sized(problem.outputs)
        seen_rows, seen_columns, _ = self.seen(problem)
        blocks = ceil(rows / self.lines) * ceil(problem.features / self.lanes)
        blocks *= problem.known_images
        tiles = ceil(columns / self.pixels)
        products = problem.tap_count * max(self.pixels, PROCESSOR.fused_latency)
        of_tiles = self.lines * tiles * (products + PROCESSOR.panel_tile_cycles)
        cycles = of_tiles + seen_rows * seen_columns * PROCESSOR.copy_cycles
        return ceil(blocks / machine.threads) * cycles / PROCESSOR.cycles_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Widened]:
        return iter(())


def sized(extents: tuple[object, object]) -> Extents:
    """Extents that are numbers."""
    rows, columns = extents
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return rows, columns


def candidates_widened(problem: Problem, machine: Machine) -> Iterator[Widened]:
    """Tiles whose pixels divide a line or fill the registers, of lines whose copy stays in the nearest caches."""
    if Widened(1, 1, machine.lanes).misfit(problem) is not None:
        return
    rows, columns = sized(problem.outputs)
    most = machine.registers - 3
    exact = [pixels for pixels in range(min(most, columns), 3, -1) if columns % pixels == 0]
    even = ceil(columns / ceil(columns / most))
    for pixels in sorted({even, *exact[:1]}):
        for lines in sorted({1, *(min(rows, n) for n in (2, 4, 7, 14))}):
            plan = Widened(pixels, lines, machine.lanes)
            high, wide, lanes = plan.seen(problem)
            copied = high * wide * lanes * problem.total.nbytes
            if lines == 1 or copied <= 2 * PROCESSOR.near_bytes:
                yield plan
