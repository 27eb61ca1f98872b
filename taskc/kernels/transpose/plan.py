"""How a transpose is computed, as data. A plan's type is its algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd, prod
from typing import Any

from taskc import DType, Machine, Mapping
from taskc.kernels.extents import known
from taskc.kernels.machine_facts import GPU, PROCESSOR, seconds_of_bytes
from taskc.kernels.owners import boxes_of, owners_of_boxes, power, width
from taskc.kernels.transpose.problem import RANK, Problem


@dataclass(frozen=True, slots=True)
class Rows:
    """own  who has which elements of a block, where rows stay rows"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Rows]:
        wide = width(problem.extents[-1], problem.dtype)
        for accesses in (1, 2, 4, 8):
            yield Rows(boxes_of(problem.extents, wide, machine, accesses))


@dataclass(frozen=True, slots=True)
class Squares:
    """On processors: a block has tall x wide squares of lanes x lanes elements."""

    lanes: int
    tall: int
    wide: int

    def cost(self, problem: Problem, machine: Machine) -> float:
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Squares]:
        sides = (1, 2, 4, 8, 16, 32)
        for tall in {self.tall, *(n for n in sides if n <= self.tall)}:
            for wide in {self.wide, *(n for n in sides if n <= self.wide)}:
                yield replace(self, tall=tall, wide=wide)


@dataclass(frozen=True, slots=True)
class Tiles:
    """On GPUs: a worker has repeats squares of side x side elements, and workers lie down and across."""

    side: int
    repeats: tuple[int, int]
    workers: tuple[int, int]

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Accesses of less than half the widest one don't fill memory."""
        wanted = GPU.access_bytes / 2
        return _seconds(problem, machine) * max(1, wanted / (self.side * problem.dtype.nbytes))

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Tiles]:
        for most, repeats in ((8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (32, 1)):
            yield _tiles(problem, machine, self.side, most, repeats)


@dataclass(frozen=True, slots=True)
class Runs:
    """On GPUs: so many short rows, which end within an access, are one run of memory; `is_read`: of x, else of y."""

    rows: int
    is_read: bool

    def cost(self, problem: Problem, machine: Machine) -> float:
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Runs]:
        for rows in (16, 32, 128):
            if rows * problem.dtype.nbytes >= GPU.access_bytes:
                yield replace(self, rows=rows)


def candidates(problem: Problem, machine: Machine) -> Iterator[Rows | Squares | Tiles | Runs]:
    height, broad = problem.extents[problem.across], problem.extents[-1]
    if problem.across == RANK - 1:
        wide = width(problem.extents[-1], problem.dtype)
        yield Rows(owners_of_boxes(problem.extents, wide, machine))
    elif machine.is_processor:
        lanes = max(4, machine.lanes)
        yield Squares(lanes, _squares(height, lanes), _squares(broad, lanes))
    else:
        yield from _runs(problem)
        side = gcd(width(height, problem.dtype), width(broad, problem.dtype), GPU.square_side)
        yield _tiles(problem, machine, side, *((16, 1) if side >= 4 else (8, 4)))


def _squares(extent: Any, lanes: int) -> int:
    most = PROCESSOR.transposed_squares
    return max(1, min(most, ceil(extent / lanes))) if isinstance(extent, int) else most


def _tiles(problem: Problem, machine: Machine, side: int, most: int, repeats: int) -> Tiles:
    """`most` workers go down, unless the rows are short, and each has so many squares."""
    rows, columns = (
        power(ceil(extent / side)) if isinstance(extent, int) else GPU.block_workers
        for extent in (problem.extents[problem.across], problem.extents[-1])
    )
    down = min(rows, max(most, GPU.block_workers // columns))
    across = min(columns, GPU.block_workers // down)
    down = max(down, machine.lanes // across)
    if rows >= down * repeats:
        return Tiles(side, (repeats, 1), (down, across))
    return Tiles(side, (1, max(1, min(repeats, columns // across))), (down, across))


def _runs(problem: Problem) -> Iterator[Runs]:
    """Of the last two axes of four exchanged, where one side has short rows and the other whole accesses."""
    *_, height, broad = problem.given.shape
    is_known = isinstance(height, int) and isinstance(broad, int)
    if problem.order != (0, 1, 3, 2) or not is_known:
        return
    for short, other in ((broad, height), (height, broad)):
        if _are_short(short, problem.dtype) and _are_whole(other, problem.dtype):
            yield Runs(GPU.run_rows, is_read=short is broad)


def _are_short(extent: int, dtype: DType) -> bool:
    return width(extent, dtype) * dtype.nbytes < GPU.access_bytes // 2 and (
        0 < GPU.run_rows * extent * dtype.nbytes <= GPU.longest_run_bytes
    )


def _are_whole(extent: int, dtype: DType) -> bool:
    return extent > 0 and extent * dtype.nbytes % GPU.access_bytes == 0


def _seconds(problem: Problem, machine: Machine) -> float:
    """As long as memory takes for each element twice."""
    elements = prod(known(n) for n in problem.extents)
    return seconds_of_bytes(2 * elements * problem.dtype.nbytes, machine)
