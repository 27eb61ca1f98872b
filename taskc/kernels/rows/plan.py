"""How rows are computed, as data: `Whole` rows in registers, or `Strips`, that rows are gone over by.

Rows whose elements aren't neighbours are `Columns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod

from taskc import DType, Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.machine_facts import GPU, PROCESSOR, seconds_of_bytes
from taskc.kernels.owners import along, boxes_of, owners_of_boxes, power, width
from taskc.kernels.rows.problem import Problem
from taskc.kernels.signatures import Extent, known

_PAIRED_ROWS = 16  # of a block: the first and the last of them go by alone


@dataclass(frozen=True, slots=True)
class Whole:
    """own  who has which part of a block's rows

    It is spatial(rows, 1) * repeat(1, accesses) * spatial(1, workers) * repeat(1, wide).
    """

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice."""
        return _seconds(2, problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Whole]:
        """Other numbers of workers to a row, as far as their registers hold it, and of rows to a block."""
        wide = width(problem.n, problem.dtype)
        for workers in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
            accesses = ceil(problem.n / (workers * wide))
            if accesses * wide > GPU.most_row_elements or workers >= 2 * power(problem.n):
                continue
            least = max(1, machine.lanes // workers)
            for rows in (1, 2, 4, 8, 16, 32):
                if least <= rows <= max(least, GPU.block_workers // workers):
                    yield Whole(_of_rows(rows, along(workers, accesses, wide)))


@dataclass(frozen=True, slots=True)
class Strips:
    """own   who has which part of a step along a row
    peak  the same, where the largest element is looked for
    rows  of a block: those of softmax are paired, if their powers are kept
    kept  elements of a row whose powers softmax keeps
    """

    own: Mapping
    peak: Mapping | None = None
    rows: int = 1
    kept: int = 0

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element, once for each time that the row is gone over.

        On a processor a row that is read again comes from a cache.
        """
        if machine.is_processor:
            return _seconds(2, problem, machine)
        return _seconds(3 if problem.function == "rms_norm" else 4, problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Strips]:
        paired, kept = {self.rows}, {self.kept}
        if problem.function == "softmax" and machine.is_processor:
            kept |= {0, _most_powers(problem, machine)}
            if isinstance(problem.n, int) and problem.n <= self.kept:
                paired |= {1, 2, 4, 8, 16}
        for own in _steps(problem, machine):
            has_both = self.peak is not None and self.peak.workers == own.workers
            for peak in (self.peak, own) if has_both else (own if problem.has_peak else None,):
                for most in sorted(kept):
                    for rows in sorted(paired) if most and most >= self.kept else (1,):
                        yield Strips(own, peak, rows, most)


@dataclass(frozen=True, slots=True)
class Columns:
    """own      who has which of neighbouring rows
    is_kept  whether softmax keeps the powers of a block's rows
    """

    own: Mapping
    is_kept: bool = False

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice; when rows are gone over again, they come from a cache."""
        return _seconds(2, problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Columns]:
        wide = width(problem.inner, problem.dtype)
        for accesses in (1, 2, 4, 8):
            own = boxes_of((problem.inner,), wide, machine, accesses)
            yield _columns(problem, machine, own)


def candidates(problem: Problem, machine: Machine) -> Iterator[Whole | Strips | Columns]:
    if not problem.is_contiguous:
        wide = width(problem.inner, problem.dtype)
        yield _columns(problem, machine, owners_of_boxes((problem.inner,), wide, machine))
        return
    own = owners_of_whole_rows(problem.m, problem.n, problem.dtype, machine)
    if own is not None:
        yield Whole(own)
    yield _strips(problem, machine)


def _seconds(times: int, problem: Problem, machine: Machine) -> float:
    sizes = (known(n) for n in (problem.m, problem.n, problem.inner))
    return seconds_of_bytes(times * prod(sizes) * problem.dtype.nbytes, machine)


def _columns(problem: Problem, machine: Machine, own: Mapping) -> Columns:
    """A processor keeps the powers of as many elements as the nearest caches do."""
    n = problem.n
    most = PROCESSOR.cached_power_bytes // problem.wide.nbytes
    has_room = isinstance(n, int) and n * own.shape[0] <= most
    return Columns(own, problem.function == "softmax" and machine.is_processor and has_room)


def _strips(problem: Problem, machine: Machine) -> Strips:
    """On a processor a row stays a loop, unless it is short, and softmax has the powers of a row computed while
    those of the row before are divided: one keeps the arithmetic busy and the other the memory.
    """
    m, n = problem.m, problem.n
    if not machine.is_processor:
        own = along(2 * GPU.block_workers, 4, width(n, problem.dtype))
        return Strips(own, own if problem.has_peak else None)
    plan = Strips(_step(n, machine, 4, PROCESSOR.unrolled_steps + 1))
    if problem.has_peak:  # a maximum is short: eight of them go on side by side
        plan = replace(plan, peak=_step(n, machine, 8, 1))
    if problem.function != "softmax":
        return plan
    most, rows = _most_powers(problem, machine), 1
    kept = min(n, most) if isinstance(n, int) else most
    if isinstance(n, int) and isinstance(m, int) and n <= most:
        rows = min(_PAIRED_ROWS, max(1, m // (4 * machine.threads)))
    return replace(plan, rows=rows, kept=kept)


def _most_powers(problem: Problem, machine: Machine) -> int:
    """Powers of a row, so many that a core's own cache keeps the row, too, and the result of the row before."""
    return machine.fast_memory // 4 // problem.wide.nbytes


def _step(n: Extent, machine: Machine, most: int, steps: int) -> Mapping:
    """`most` vectors, unless a row is fewer steps."""
    vectors = most
    while isinstance(n, int) and vectors > 1 and n < steps * vectors * machine.lanes:
        vectors //= 2
    return repeat(1, vectors) * spatial(1, machine.lanes)


def _steps(problem: Problem, machine: Machine) -> Iterator[Mapping]:
    if machine.is_processor:
        for vectors in (1, 2, 4, 8):
            yield repeat(1, vectors) * spatial(1, machine.lanes)
        return
    for workers in (128, 256, 512, 1024):
        for accesses in (1, 2, 4, 8):
            yield along(workers, accesses, width(problem.n, problem.dtype))


def owners_of_whole_rows(m: Extent, n: Extent, dtype: DType, machine: Machine) -> Mapping | None:
    """Whole rows of n elements, in the registers of a block; None where they don't fit."""
    is_known = not machine.is_processor and isinstance(n, int)
    if not is_known or not 0 < n <= machine.lanes**2 * GPU.most_row_elements:
        return None
    wide = width(n, dtype)
    if n <= machine.lanes * GPU.row_elements_of_warp:
        workers = min(machine.lanes, power(ceil(n / wide)))
    else:
        workers = min(
            power(ceil(n / GPU.row_elements_of_block)),
            max(GPU.row_workers, power(ceil(n / GPU.most_row_elements))),
        )
    rows = max(1, GPU.block_workers // workers)
    if isinstance(m, int):
        # Every multiprocessor has a block, as far as there are rows: of a whole warp at least.
        rows = min(rows, max(machine.lanes // workers, power(m // machine.threads), 1))
    return _of_rows(rows, along(workers, ceil(n / (workers * wide)), wide))


def _of_rows(rows: int, own: Mapping) -> Mapping:
    return own if rows == 1 else spatial(rows, 1) * own
