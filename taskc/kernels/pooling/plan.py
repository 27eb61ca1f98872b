"""How a pooling is computed, as data: by `Lines`, whose lanes have channels, `Planes` of a channel, or `Boxes`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod

from taskc import Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.machine_facts import PROCESSOR, Extents, seconds_of_bytes
from taskc.kernels.owners import boxes_of, owners_of_boxes, width
from taskc.kernels.pooling.problem import Problem
from taskc.kernels.signatures import ASSUMED_IMAGES, known


@dataclass(frozen=True, slots=True)
class Lines:
    """On processors: a block has `lines` of results, of `channels`, in tiles of pixels by vectors of lanes.

    taps  columns of a window that are folded at a time: all of them, but where a tile is one pixel
    """

    pixels: int
    vectors: int
    lanes: int
    lines: int
    channels: int
    taps: int

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes

    def tile(self, pixels: int) -> Mapping:
        """Who has what of a tile of so many pixels."""
        return repeat(pixels, self.vectors) * spatial(1, self.lanes)

    def unit(self, problem: Problem) -> int:
        """How far apart the columns are that are folded."""
        return problem.dilation[1] if self.pixels == 1 else 1

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes, or as the steps of all tiles do, whose registers wait for each other."""
        problem = problem.assumed
        made: Extents = problem.outputs
        (rows, columns), (taps, across) = made, problem.size
        channels = max(1, ceil(problem.channels / self.channels))
        blocks = _images(problem) * channels * ceil(rows / self.lines)
        tiles = ceil(columns / self.pixels) * ceil(self.channels / self.wide) * self.lines
        seen = across if self.pixels == 1 else problem.seen(self.pixels)
        steps = taps * seen + (across + 1) * self.pixels
        cycles = tiles * max(steps * self.vectors, (taps + across) * PROCESSOR.fused_latency)
        turns = ceil(blocks / machine.threads)
        return max(_seconds(problem, machine), turns * cycles / PROCESSOR.cycles_per_second)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Lines]:
        for pixels in (self.pixels // 2, self.pixels // 4):
            if pixels > 1:
                yield replace(self, pixels=pixels)


@dataclass(frozen=True, slots=True)
class Planes:
    """On processors: a block has `lines` of results of one channel, folded by vectors of lanes along them.

    columns  of results, to a block, where they aren't all
    """

    vectors: int
    lanes: int
    lines: int
    columns: int | None = None

    @property
    def own(self) -> Mapping:
        return repeat(self.vectors) * spatial(self.lanes)

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes, or as the steps of all vectors do."""
        problem = problem.assumed
        made: Extents = problem.outputs
        (rows, columns), (taps, across) = made, problem.size
        blocks = _images(problem) * max(1, problem.channels) * ceil(rows / self.lines)
        wide = self.vectors * self.lanes
        step = max(self.vectors, PROCESSOR.fused_latency)
        width: int = problem.extents[1]
        steps = ceil(width / wide) * taps + ceil(columns / wide) * across
        cycles = ceil(blocks / machine.threads) * self.lines * steps * step
        return max(_seconds(problem, machine), cycles / PROCESSOR.cycles_per_second)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Planes]:
        for lines in (1, 4, 16):
            yield replace(self, lines=lines)


@dataclass(frozen=True, slots=True)
class Boxes:
    """On GPUs: own says  who has which results of a block"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes."""
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Boxes]:
        for accesses in (1, 2, 4, 8):
            yield Boxes(boxes_of(problem.made.shape, _width(problem), machine, accesses))


def candidates(problem: Problem, machine: Machine) -> Iterator[Lines | Planes | Boxes]:
    if not machine.is_processor:
        yield Boxes(owners_of_boxes(problem.made.shape, _width(problem), machine, accesses=1))
    elif problem.order == "NCHW":
        yield from _candidates_of_planes(problem, machine)
    else:
        yield from _candidates_of_lines(problem, machine)


def _candidates_of_planes(problem: Problem, machine: Machine) -> Iterator[Planes]:
    """As many lines as the nearest cache keeps and leave blocks enough, and no more vectors than a line fills."""
    is_open = not isinstance(problem.outputs[1], int)
    problem = problem.assumed
    rows, columns = problem.outputs
    cached = PROCESSOR.near_bytes // 2 // (problem.seen(columns) * problem.wide.nbytes)
    least = PROCESSOR.blocks_per_thread * machine.threads
    planes = _images(problem) * max(1, problem.channels)
    lines = max(1, min(rows, cached, rows * planes // least))
    lines = ceil(rows / ceil(rows / lines))
    for vectors in (4, 2, 1):
        if vectors == 1 or vectors // 2 * machine.lanes < problem.extents[1]:
            # Whole turns of the loop over columns: a shorter last one isn't proved to store its columns.
            wide = vectors * machine.lanes
            whole = ceil(columns / wide) * wide
            yield Planes(vectors, machine.lanes, lines, whole if is_open else None)


def _candidates_of_lines(problem: Problem, machine: Machine) -> Iterator[Lines]:
    """Channels that lie beside each other are one block's; few lines, so that blocks are enough for all threads."""
    problem = problem.assumed
    rows = problem.outputs[0]
    blocks = max(1, ceil(problem.channels / machine.lanes))
    for vectors, pixels, taps in _tiles(problem, machine):
        if vectors > blocks:
            continue
        wide = vectors * machine.lanes
        channels = wide if problem.order == "NCHWc" else ceil(blocks / vectors) * wide
        for lines in (8, 4, 2, 1):
            parts = ceil(blocks * machine.lanes / channels) * ceil(rows / lines)
            is_enough = _images(problem) * parts >= PROCESSOR.blocks_per_thread * machine.threads
            if lines == 1 or (lines <= rows and is_enough):
                yield Lines(pixels, vectors, machine.lanes, lines, channels, taps)


def _tiles(problem: Problem, machine: Machine) -> Iterator[tuple[int, int, int]]:
    """Vectors, pixels and taps of tiles whose columns take half the registers, or all but those that a fold needs.

    Small ones come first: larger ones pay where windows have much in common. Of NHWC several vectors do, which lie
    beside each other: memory is read in longer runs.
    """
    columns = problem.outputs[1]
    counts = (4, 2, 1) if problem.order == "NHWC" else (1, 2, 4)
    for registers in (machine.registers // 2, machine.registers - 4):
        for vectors in counts:
            most = registers // vectors
            fits = [n for n in range(1, min(columns, most) + 1) if problem.seen(n) <= most]
            pixels = ceil(columns / ceil(columns / max(fits, default=1)))
            yield vectors, pixels, problem.size[1] if pixels > 1 else min(problem.size[1], most)


def _width(problem: Problem) -> int:
    """Elements of an access."""
    return width(problem.channels, problem.dtype) if problem.results == "NHWC" else 1


def _seconds(problem: Problem, machine: Machine) -> float:
    pixels = prod(problem.extents) + prod(problem.outputs)
    nbytes = _images(problem) * max(1, problem.channels) * pixels * problem.dtype.nbytes
    return seconds_of_bytes(nbytes, machine)


def _images(problem: Problem) -> int:
    return known(problem.images, ASSUMED_IMAGES)
