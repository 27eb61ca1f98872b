"""How a scan is computed, as data: each worker goes along the axis by itself, or all of a block's together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from taskc import Machine, Mapping, repeat, spatial
from taskc.kernels.extents import known
from taskc.kernels.machine_facts import GPU, PROCESSOR, seconds_of_bytes
from taskc.kernels.owners import boxes_of, owners_of_boxes, power, width
from taskc.kernels.scans.problem import Problem


@dataclass(frozen=True, slots=True)
class Serial:
    """own  who has which lines of a block, of [outer, inner]"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice, and where lines lie along vectors each lane for itself."""
        outer, along, inner = map(known, problem.given.shape)
        seconds = _seconds(problem, machine)
        if not machine.is_processor:  # few lines are few workers
            seconds /= min(1, max(1, outer * inner) / (GPU.block_workers * _fewest(machine)))
        if inner > 1 or along == 1:
            return seconds
        if not machine.is_processor:
            return seconds * GPU.access_bytes / problem.given.dtype.nbytes
        lines = ceil(outer / machine.lanes) * machine.lanes
        return seconds + _shared(lines * along * PROCESSOR.gathered_cycles, outer, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Serial]:
        outer, _, inner = problem.given.shape
        for accesses in (1, 2, 4, 8):
            wide = width(inner, problem.given.dtype)
            yield Serial(boxes_of((outer, inner), wide, machine, accesses))


@dataclass(frozen=True, slots=True)
class Lines:
    """own  who has what of a step of a block's lines, of [outer, along]"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes, and then the vectors' prefixes, for which a line has one thread."""
        outer = known(problem.given.shape[0])
        rows, step = self.own.shape
        if not machine.is_processor:
            blocks = max(1, ceil(outer / rows))
            return _seconds(problem, machine) / min(1, blocks / _fewest(machine))
        steps = outer * ceil(known(problem.given.shape[1]) / step)
        cycles = steps * step / machine.lanes * PROCESSOR.scan_cycles
        return _seconds(problem, machine) + _shared(cycles, outer, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Lines]:
        for most in (1, 2, 4, 8, 16) if machine.is_processor else (32, 64, 128, 256):
            yield Lines(_walkers(problem, machine, most))


@dataclass(frozen=True, slots=True)
class Ranges:
    """own  who has what of a step of a range, of [1, along]
    ranges  of a line, at most
    chunks  of a range, of whole steps: each is added up by a block before
    """

    own: Mapping
    ranges: int
    chunks: int = 4

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As Lines, but by all threads, and all ranges but the last are read once more, by a step of its own."""
        outer, along = map(known, problem.given.shape[:2])
        more = 1 + (1 - 1 / self.ranges) / 2
        if not machine.is_processor:
            blocks = max(1, outer) * self.ranges
            return _seconds(problem, machine) * more / min(1, blocks / _fewest(machine))
        cycles = outer * along / machine.lanes * (PROCESSOR.scan_cycles + PROCESSOR.sum_cycles)
        seconds = _seconds(problem, machine) * more
        shared = _shared(cycles, outer * self.ranges, machine)
        return seconds + shared + PROCESSOR.step_seconds

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Ranges]:
        step, along = self.own.shape[1], known(problem.given.shape[1])
        for chunks in (1, 2, 4, 8, 16):
            for ranges in (self.ranges // 2, self.ranges, 2 * self.ranges):
                if ranges > 1 and along >= ranges * chunks * step:
                    yield replace(self, ranges=ranges, chunks=chunks)


WARP = 32
ROW = 4 * WARP  # elements of a warp, four of each lane


@dataclass(frozen=True, slots=True)
class LookBack:
    """A block of `warps`, each with so many `rows` of four elements a lane, of a GPU."""

    warps: int
    rows: int

    @property
    def size(self) -> int:
        return self.warps * self.rows * ROW

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice, behind a kernel that clears the words."""
        outer, along = map(known, problem.given.shape[:2])
        busy = min(1, max(1, outer) * along / self.size / _fewest(machine))
        return _seconds(problem, machine) / busy + GPU.next_kernel_cycles / GPU.cycles_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[LookBack]:
        for warps in (4, 8, 16):
            for rows in (2, 4, 8):
                yield LookBack(warps, rows)


Plan = Serial | Lines | Ranges | LookBack


def candidates(problem: Problem, machine: Machine) -> Iterator[Plan]:
    outer, _, inner = problem.given.shape
    wide = width(inner, problem.given.dtype)
    if isinstance(inner, int) and inner == 1:
        own = _walkers(problem, machine, 8 if machine.is_processor else GPU.block_workers)
        yield Lines(own)
        yield from _ranges(problem, own, machine)
        yield from _look_back(problem, machine)
    yield Serial(owners_of_boxes((outer, inner), wide, machine, accesses=1))


def _walkers(problem: Problem, machine: Machine, most: int) -> Mapping:
    """Up to so many vectors of a processor, or workers, who scan a part of a line; no more than it has."""
    _, along, _ = problem.given.shape
    if machine.is_processor:
        while isinstance(along, int) and most > 1 and most // 2 * machine.lanes >= along:
            most //= 2
        return repeat(1, most) * spatial(1, machine.lanes)
    wide = width(along, problem.given.dtype)
    workers = min(most, power(ceil(along / wide))) if isinstance(along, int) else most
    rows = max(1, GPU.block_workers // most, machine.lanes // workers)
    return spatial(rows, 1) * spatial(1, workers) * repeat(1, wide)


def _ranges(problem: Problem, own: Mapping, machine: Machine) -> Iterator[Ranges]:
    """As many as threads that have no line of their own, or blocks that keep a GPU's memory busy."""
    outer, along, _ = problem.given.shape
    rows, step = own.shape
    if not isinstance(outer, int) or not isinstance(along, int) or rows > 1 or not outer:
        return
    wanted = machine.threads if machine.is_processor else _fewest(machine)
    most = min(ceil(wanted / outer), along // (4 * step))
    if most > 1:
        yield Ranges(own, most)


def _look_back(problem: Problem, machine: Machine) -> Iterator[LookBack]:
    """Of lines so long that each has several groups of blocks, in sums that fit in half a word."""
    outer, along, _ = problem.given.shape
    if machine.is_processor or not isinstance(outer, int) or not isinstance(along, int):
        return
    plan = LookBack(8, 4)
    if problem.wide.nbytes == 4 and 0 < outer <= _fewest(machine) and along > 8 * plan.size:
        yield plan


def _seconds(problem: Problem, machine: Machine) -> float:
    count = prod(map(known, problem.given.shape))
    return seconds_of_bytes(2 * count * problem.given.dtype.nbytes, machine)


def _shared(cycles: float, parts: int, machine: Machine) -> float:
    """Seconds of work that so many threads may share."""
    return cycles / PROCESSOR.cycles_per_second / max(1, min(parts, machine.threads))


def _fewest(machine: Machine) -> int:
    """Blocks that keep a GPU's memory busy."""
    return GPU.streaming_blocks * machine.threads
