"""How a reduction is computed, as data: by one `Fold`, or in `Parts`, which a second one folds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil, gcd, prod

import taskc as tc
from taskc import Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.machine_facts import GPU, PROCESSOR, seconds_of_bytes
from taskc.kernels.owners import along as walkers, power, width
from taskc.kernels.reductions.problem import PLACES, Problem
from taskc.kernels.signatures import ASSUMED_MANY, known

# Of processors: elements that a part has, and the number of results above which there are no parts. They don't
# depend on the number of threads, and so neither does the result.
_PART = 1 << 16
_MOST_KEPT = 64
_size = partial(known, assumed=ASSUMED_MANY)


@dataclass(frozen=True, slots=True)
class Fold:
    """own   who has which part of what a block folds at a time: of [middle, along], or of [along, inner]
    deep  rows of [along, inner] that are folded into a total before the next total's turn
    """

    own: Mapping
    deep: int = 1

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes."""
        return _seconds(problem, machine, 1)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Fold]:
        for own in _owners(problem, machine):
            yield Fold(own, _deep(problem, machine, own))


@dataclass(frozen=True, slots=True)
class Parts:
    """partial  how a part is folded
    size     elements along the folded axis that are a part
    rest     how parts are
    """

    partial: Fold
    size: int
    rest: Fold

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes.

        How long the second kernel takes until it runs isn't counted: parts of so many steps have always been taken as
        worth it, and that was never measured.
        """
        parts = ceil(_size(problem.view[3]) / self.size)
        _, second = in_two(problem)
        carried = 2 * parts * prod(_size(n) for n in second.made.shape) * problem.wide.nbytes
        seconds = _seconds(problem, machine, parts)
        return seconds + (0 if machine.is_processor else seconds_of_bytes(carried, machine))

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Parts]:
        for fold in self.partial.variations(problem, machine):
            yield replace(self, partial=fold)
        for size in (self.size, self.size // 2, 2 * self.size) if machine.is_processor else ():
            yield replace(self, size=max(1, size))


def candidates(problem: Problem, machine: Machine) -> Iterator[Fold | Parts]:
    """Parts first, as far as a block has some steps of each: what is folded into few numbers keeps all blocks busy."""
    for size in _sizes(problem, machine) if problem.operator not in PLACES else ():
        first, second = in_two(problem)
        yield Parts(_fold(first, machine, size), size, _fold(second, machine, None))
    yield _fold(problem, machine, None)


def in_two(problem: Problem) -> tuple[Problem, Problem]:
    """The problem of folding into parts, and that of folding these into the result."""
    outer, _, middle, _, inner = problem.view
    between = problem.wide[outer, 1, middle, tc.dim("parts"), inner]
    # A mean is the sum of its parts' shares.
    rest = "sum" if problem.operator == "mean" else problem.operator
    return replace(problem, made=between), replace(problem, operator=rest, given=between)


def _sizes(problem: Problem, machine: Machine) -> list[int]:
    """Of the parts that an axis may be cut into."""
    outer, apart, middle, along, inner = problem.view
    if not all(isinstance(n, int) for n in (outer, middle, inner, apart)):
        return []
    if machine.is_processor:
        size = max(1, _PART // max(1, inner))
        is_few = apart * outer * middle * inner <= _MOST_KEPT
        return [] if not is_few or (isinstance(along, int) and along <= 2 * size) else [size]
    step = _owner(problem, machine, None).shape[1 if problem.has_rows else 0]
    most = GPU.streaming_blocks * machine.threads // max(1, _blocks(problem, machine))
    if not isinstance(along, int):
        return [4 * GPU.least_part_accesses * step] if most > 1 else []
    most = min(most, along // (GPU.least_part_accesses * step))
    return [ceil(along / (parts * step)) * step for parts in range(2, most + 1)]


def _seconds(problem: Problem, machine: Machine, parts: int) -> float:
    """Few blocks leave memory without work. Those of a processor are as many as it wants, whatever its threads."""
    nbytes = prod(_size(extent) for extent in problem.view) * problem.given.dtype.nbytes
    seconds = seconds_of_bytes(nbytes, machine)
    if machine.is_processor:
        return seconds
    blocks = max(1, _blocks(problem, machine)) * parts
    return seconds / min(1, blocks / (GPU.streaming_blocks * machine.threads))


def _blocks(problem: Problem, machine: Machine) -> int:
    """Of each part, of the usual size: smaller ones are more, and have as much under way altogether."""
    outer, _, middle, _, inner = (_size(extent) for extent in problem.view)
    rows, columns = _owner(problem, machine, None).shape
    return outer * (ceil(middle / rows) if problem.has_rows else middle * ceil(inner / columns))


def _fold(problem: Problem, machine: Machine, size: int | None) -> Fold:
    own = _owner(problem, machine, size)
    return Fold(own, _deep(problem, machine, own))


def _owner(problem: Problem, machine: Machine, size: int | None) -> Mapping:
    """Who has what of a block's step, where parts are of so many elements."""
    _, _, middle, along, inner = problem.view
    if machine.is_processor:
        vectors = (_vectors_of_row if problem.has_rows else _vectors_of_strip)(problem, machine)
        return repeat(1, vectors) * spatial(1, machine.lanes)
    if not problem.has_rows:
        wide = width(inner, problem.given.dtype)
        most = power(ceil(inner / wide)) if isinstance(inner, int) else GPU.block_workers
        return _columns(4, min(machine.lanes, most), wide)
    wide = gcd(width(along, problem.given.dtype), size or 0)
    workers, accesses = GPU.block_workers, 4
    if isinstance(along, int):
        workers = min(GPU.block_workers, power(ceil(along / (wide * accesses))))
        accesses = max(1, min(accesses, along // (workers * wide)))
    rows = GPU.block_workers // workers
    if rows > 1 and isinstance(middle, int):
        rows = min(rows, max(machine.lanes // workers, power(middle // machine.threads), 1))
    return spatial(rows, 1) * walkers(workers, accesses, wide)


def _vectors_of_row(problem: Problem, machine: Machine) -> int:
    """A row stays a loop, unless it is short."""
    along, vectors, steps = problem.view[3], 8, PROCESSOR.unrolled_steps + 1
    while isinstance(along, int) and vectors > 1 and vectors * machine.lanes * steps > along:
        vectors //= 2
    return vectors


def _vectors_of_strip(problem: Problem, machine: Machine) -> int:
    """Whole rows, which a processor reads ahead, if each thread has a strip and the nearest cache keeps its totals."""
    outer, _, middle, _, inner = problem.view
    least = machine.registers // 2
    if not isinstance(inner, int):
        return least
    row, blocks = max(1, ceil(inner / machine.lanes)), max(1, _size(outer) * _size(middle))
    most = PROCESSOR.near_bytes // machine.vector_bytes
    strips = max(ceil(row / most), ceil(machine.threads / blocks))
    return min(row, max(least, ceil(row / strips)))


def _deep(problem: Problem, machine: Machine, own: Mapping) -> int:
    """Totals that no registers hold are in a processor's cache: each is read and written once for so many rows."""
    if not machine.is_processor or problem.has_rows:
        return 1
    return 4 if own.shape[1] > machine.registers // 2 * machine.lanes else 1


def _columns(deep: int, across: int, wide: int) -> Mapping:
    down = GPU.block_workers // across
    return repeat(deep, 1) * spatial(down, across) * repeat(1, wide)


def _owners(problem: Problem, machine: Machine) -> Iterator[Mapping]:
    if machine.is_processor:
        for vectors in (1, 2, 4, 8, 16) if problem.has_rows else (4, 16, 64, 256):
            yield repeat(1, vectors) * spatial(1, machine.lanes)
        return
    _, _, _, along, inner = problem.view
    for count in (1, 2, 4, 8):
        if problem.has_rows:
            for workers in (32, 64, 128, 256):
                wide, rows = width(along, problem.given.dtype), GPU.block_workers // workers
                yield spatial(rows, 1) * walkers(workers, count, wide)
        else:
            for across in (8, 16, 32, 64):
                yield _columns(count, across, width(inner, problem.given.dtype))
