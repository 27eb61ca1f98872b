"""How a GEMM is computed on processors, as data: a plan has every choice that changes speed and not the result.

A plan's type is its algorithm: `Panels` and `FewRows` are plans of `matmul`, `Panels` of `batch_matmul`, `Packs` of
`product`. Those of GPUs are in plan_gpu.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from taskc import Machine, Mapping, repeat, spatial
from taskc.ir.target import DotInstruction, TileInstruction
from taskc.kernels.machine_facts import PROCESSOR, UNMEASURED_SHARE
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors, candidates_gpu
from taskc.kernels.matmul.problem import Extent, Problem
from taskc.kernels.owners import VectorTile

MOST_ROWS = 8  # of FewRows: of more, b is worth a copy
_MANY = 1 << 20  # for an extent that is known only at a call


@dataclass(frozen=True, slots=True)
class FewRows:
    """columns   of a block
    lanes     workers
    depth     rows of b[k, n] that are read side by side
    together  of b[n, k]: rows of a, columns of c, and vectors along k, whose products are summed at a time
    """

    columns: int
    lanes: int
    depth: int = 6
    together: tuple[int, int, int] = (1, 2, 2)

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as reading b, or as the products."""
        read = _elements_of_b(problem) * problem.right.nbytes / PROCESSOR.bytes_per_second
        return max(read, _seconds(_size(problem.m) * _size(problem.n), problem, machine))

    def variations(self, problem: Problem, machine: Machine) -> Iterator[FewRows]:
        pair = 2 * self.lanes
        for columns in (self.columns, max(1, self.columns // (2 * pair)) * pair, 2 * self.columns):
            if problem.transpose_b:
                for together in ((1, 2, 2), (4, 4, 1), (2, 4, 1), (1, 4, 1)):
                    yield replace(self, columns=columns, together=together)
            else:
                for depth in (2, 3, 4, 6, 8):
                    yield replace(self, columns=columns, depth=depth)


@dataclass(frozen=True, slots=True)
class Panels(VectorTile):
    """A tile is `rows` x `vectors` * lanes; a block has as many tiles as `tall` rows take.

    depth    rows of b that a panel has at a time; 0: all
    panels   panels that take turns, where it hasn't all
    columns  of a block of several panels, whose last tiles have few more rows than are left; 0: a block is a panel
    few      how, where a call's rows are few: of a problem that doesn't know them
    """

    rows: int
    vectors: int
    tall: int
    lanes: int
    depth: int = 0
    panels: int = 1
    columns: int = 0
    few: FewRows | None = None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the products, with those behind the edges, and as reading b and putting it in order."""
        share = PROCESSOR.tile_shares[machine.registers].get(
            (self.rows, self.vectors), UNMEASURED_SHARE
        )
        made = _rounded(problem, self.rows, self.wide) / share
        copied = 3 * _elements_of_b(problem) * problem.right.nbytes / PROCESSOR.bytes_per_second
        return _seconds(made, problem, machine) + copied

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Panels]:
        for tall in _heights(self.tall, self.rows, problem):
            if problem.packed or self.columns or problem.batch != ((), ()):
                yield replace(self, tall=tall)
                continue
            for depth in (
                self.depth,
                0,
                PROCESSOR.scattered_panel_rows,
                PROCESSOR.cached_panel_rows // 2,
            ):
                for panels in (self.panels, 1, 2, 4, PROCESSOR.scattered_panels) if depth else (1,):
                    yield replace(self, tall=tall, depth=depth, panels=panels)


@dataclass(frozen=True, slots=True)
class Packs:
    """own   who has which part of a tile, rows by columns
    tall  rows of a block
    pack  elements of k that lie together in b
    step  elements of k that the instruction takes at once
    """

    own: Mapping
    tall: int
    pack: int
    step: int

    @property
    def wide(self) -> int:
        return self.own.shape[1]

    def cost(self, problem: Problem, machine: Machine) -> float:
        made = _rounded(problem, *self.own.shape) / _share_of_packs(self.own, machine)
        return _seconds(made, problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Packs]:
        for tall in _heights(self.tall, self.own.shape[0], problem):
            yield replace(self, tall=tall)


def candidates(problem: Problem, machine: Machine) -> Iterable[Panels | FewRows | Tiling | Vectors]:
    """The plans of `matmul`."""
    if not machine.is_processor:
        return candidates_gpu(problem, machine)
    few: list[FewRows] = []
    if isinstance(problem.m, int) and problem.m <= MOST_ROWS and not problem.packed:
        few = [_few_rows(problem, machine)]
    return [*few, *[_with_depth(plan, problem, machine) for plan in _panels(problem, machine)]]


def candidates_of_batches(problem: Problem, machine: Machine) -> Iterable[Panels]:
    return _panels(problem, machine)


def candidates_of_packs(problem: Problem, machine: Machine) -> Iterator[Packs]:
    """Plans by tile registers, where the machine has some, and by vectors."""
    rows = machine.instructions(problem.dtype, problem.right, problem.total)
    for row in (row for row in rows if isinstance(row, TileInstruction)):
        for sizes in PROCESSOR.tile_register_shares:
            own = repeat(*sizes) * row.accumulator_fragment
            yield Packs(own, _tall(problem, own, machine), row.pack, row.shape[2])
    pack = next((row.pack for row in rows if isinstance(row, DotInstruction)), 1)
    for sizes in _tiles(PROCESSOR.pack_tile_shares[machine.registers], machine.registers):
        own = repeat(*sizes) * spatial(1, machine.lanes)
        yield Packs(own, _tall(problem, own, machine), pack, pack)


def _panels(problem: Problem, machine: Machine) -> Iterator[Panels]:
    lanes = machine.lanes
    for rows, vectors in _tiles(PROCESSOR.tile_shares[machine.registers], machine.registers):
        plan = Panels(rows, vectors, rows, lanes)
        yield replace(plan, tall=_tall(problem, plan.own, machine))


def _tiles(measured: Iterable[tuple[int, int]], registers: int) -> list[tuple[int, int]]:
    """Rows and vectors of tiles that leave registers for a row of b, those that were measured first."""
    return list(
        dict.fromkeys(
            (
                *measured,
                *(
                    (rows, vectors)
                    for rows in range(1, 17)
                    for vectors in range(1, 9)
                    if (rows + 1) * vectors <= registers
                ),
            )
        )
    )


def _with_depth(plan: Panels, problem: Problem, machine: Machine) -> Panels:
    """Adds parts of k, where a panel doesn't stay in a cache, and what a problem needs that doesn't know its rows."""
    m, n, k = problem.m, problem.n, problem.k
    if not problem.packed and not (isinstance(k, int) and k <= PROCESSOR.cached_panel_rows):
        plan = replace(plan, depth=PROCESSOR.cached_panel_rows // 2)
    if not problem.packed and not problem.transpose_b and _is_scattered(problem):
        most = ceil(n / plan.wide) // (2 * machine.threads)
        panels = max(1, min(PROCESSOR.scattered_panels, most))
        plan = replace(plan, depth=PROCESSOR.scattered_panel_rows, panels=panels)
    if isinstance(m, int):
        return plan
    few = _few_rows(problem, machine)
    columns = ceil(few.columns / plan.wide) * plan.wide
    few = replace(few, columns=columns)
    return replace(plan, columns=columns, few=None if problem.packed else few)


def _is_scattered(problem: Problem) -> bool:
    """Whether a panel's rows of b are in more pages than are found fast, for so few rows of a."""
    m, n, k = problem.m, problem.n, problem.k
    if not all(isinstance(extent, int) for extent in (m, n, k)) or m > PROCESSOR.rows_that_make_up:
        return False
    return bool(
        k * min(n * problem.dtype.nbytes, PROCESSOR.page_bytes)
        > PROCESSOR.pages_found_fast * PROCESSOR.page_bytes
    )


def _few_rows(problem: Problem, machine: Machine) -> FewRows:
    """Its columns: all, in as many equal parts as there are threads, or as the sums need."""
    m, n, lanes = problem.m, problem.n, machine.lanes
    most = max(1, PROCESSOR.cached_sums // (max(1, m) if isinstance(m, int) else MOST_ROWS))
    if isinstance(n, int):
        most = ceil(n / max(machine.threads, ceil(n / most)))
    pair = 2 * lanes
    # Six rows a power of two apart still lie in different sets of a cache. One row of a has little to do for
    # each vector of b: two rows, two vectors at a time. More rows of a share each vector of b.
    depth = 4 if isinstance(m, int) and m > 4 else 6
    together = (4, 4, 1) if isinstance(m, int) and m > 1 else (1, 2, 2)
    return FewRows(max(1, ceil(most / pair)) * pair, lanes, depth, together)


def _tall(problem: Problem, own: Mapping, machine: Machine) -> int:
    """The rows of a block, of which every thread has some."""
    rows, wide = own.shape
    tiles = max(1, ceil(_size(problem.height) / rows))
    panels = max(1, ceil(_size(problem.n) / wide))
    splits = min(tiles, ceil(PROCESSOR.blocks_per_thread * machine.threads / panels))
    if not isinstance(problem.height, int):
        splits = max(splits, ceil(_MANY / (32 * rows)))
    return ceil(tiles / splits) * rows


def _heights(tall: int, rows: int, problem: Problem) -> Iterator[int]:
    """A block's rows: this many, and a tile's, twice as many, and so on as far as there are some."""
    yield tall
    height = rows
    while height < _size(problem.height) + rows:
        yield height
        height *= 2


def _share_of_packs(own: Mapping, machine: Machine) -> float:
    rows, wide = own.shape
    if own == repeat(rows, wide // machine.lanes) * spatial(1, machine.lanes):
        tile = rows, wide // machine.lanes
        return PROCESSOR.pack_tile_shares[machine.registers].get(tile, UNMEASURED_SHARE)
    tiles = next(row for row in machine.products if isinstance(row, TileInstruction))
    sizes = rows // tiles.shape[0], wide // tiles.shape[1]
    return PROCESSOR.tile_register_shares.get(sizes, UNMEASURED_SHARE)


def _rounded(problem: Problem, rows: int, wide: int) -> int:
    """Elements of c, with those behind its edges."""
    return ceil(_size(problem.height) / rows) * rows * ceil(_size(problem.n) / wide) * wide


def _elements_of_b(problem: Problem) -> int:
    return _size(problem.products) * _size(problem.k) * _size(problem.n)


def _seconds(made: float, problem: Problem, machine: Machine) -> float:
    """The time of so many elements of c, by all threads, each multiplying a vector in a cycle."""
    cycles = made * _size(problem.products) * max(1, _size(problem.k)) / machine.lanes
    return cycles / (machine.threads * PROCESSOR.cycles_per_second)


def _size(extent: Extent) -> int:
    return extent if isinstance(extent, int) else _MANY
