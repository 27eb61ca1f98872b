"""How a GEMM is computed on processors, as data: a plan has every choice that changes speed and not the result.

A plan's type is its algorithm: `Panels` and `FewRows` are plans of `matmul`, `Panels` of `batch_matmul`, `Packs` of
`product`. Those of GPUs are in plan_gpu.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from math import ceil, gcd

from taskc import Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.ir.target import DotInstruction, TileInstruction
from taskc.kernels.machine_facts import GPU, PROCESSOR, UNMEASURED_SHARE, Extents
from taskc.kernels.matmul.gpu import is_worth_copying
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors, are_rows, candidates_gpu
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.owners import VectorTile
from taskc.kernels.signatures import ASSUMED_MANY, Extent, known

MOST_ROWS = 8  # of FewRows: of more, b is worth a copy
_size = partial(known, assumed=ASSUMED_MANY)

# Of panels: vectors and rows of tiles, beside as many rows as there is room for; in how many parts rows are, of blocks;
# rows of b that are summed at a time, and panels beside each other: untuned, the first of both are chosen, or the last
# of both, where each panel is used by so few tiles that fetching the rows of b matters.
_VECTORS = (3, 4, 2, 6, 1, 5)
_ROWS = (2, 4, 6, 8, 12)
_PARTS = (4, 1, 16, 64)
_DEPTHS = (512, 64)
_PANELS = (1, 8)
_LEAST_TILES = 4  # of a block that makes shorter numbers wide first


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
        return max(
            _reading(problem, machine),
            _seconds(_size(problem.m) * _size(problem.n), problem, machine),
        )

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

    depth     rows of b that are summed at a time, for all tiles of a block; their sums wait in its memory; 0: all
    panels    panels that take turns, where it hasn't all
    columns   of a block of several panels, whose last tiles have few more rows than are left; 0: a block is a panel
    few       how, where a call's rows are few: of a problem that doesn't know them
    in_place  b is read where it lies; else it comes packed, or each block copies its panel
    order     of blocks: of rows and columns, the slowest first
    """

    rows: int
    vectors: int
    tall: int
    lanes: int
    depth: int = 0
    panels: int = 1
    columns: int = 0
    few: FewRows | None = None
    in_place: bool = False
    order: tuple[int, int] = (1, 0)

    def misfit(self, problem: Problem) -> str | None:
        """Why it can't be this problem's, if it can't."""
        if self.tall % self.rows:
            return f"{self.tall} rows of a block are not tiles of {self.rows}"
        if self.in_place and problem.transpose_b:
            return "the rows of a transposed b lie across vectors"
        if self.in_place and problem.packed:
            return "a packed b is read where it lies in any case"
        if self.depth and problem.counted:
            return "products of a batch are summed over all of k at a time"
        return None

    def widens(self, problem: Problem) -> bool:
        """Whether a block makes a panel of shorter numbers, that comes packed, wide for all its tiles."""
        is_shorter = problem.packed and problem.right is not problem.total
        is_kept = isinstance(problem.k, int) and problem.k <= PROCESSOR.cached_panel_rows
        has_tiles = self.tall >= _LEAST_TILES * self.rows and not self.columns
        return is_shorter and is_kept and has_tiles and self.depth == 0

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the tiles of all blocks, and the copies of b, in waves of as many blocks as threads: of
        blocks as they are on average, and at last of a whole one. At the same time b is read."""
        height, n, k = _size(problem.height), _size(problem.n), max(1, _size(problem.k))
        across, below = max(1, ceil(n / self.wide)), max(1, ceil(height / self.tall))
        tiles, depth = max(1, ceil(height / self.rows)), min(self.depth or k, k)
        products = self._products(problem, machine, k)
        cycles = k * self._step(problem, machine, depth, products) + PROCESSOR.panel_tile_cycles
        if depth < k:
            waiting = self.tall * self.panels * self.wide * problem.total.nbytes
            sums = 2 * self.rows * self.wide * problem.total.nbytes
            cycles += ceil(k / depth) * sums / PROCESSOR.rate(waiting, machine)
        cycles *= tiles * across
        if not problem.packed:
            cycles += across * k * self._fetching(problem, machine, below, products)
        elif self.widens(problem):
            row = self.wide * problem.total.nbytes
            cycles += across * below * k * row / PROCESSOR.copied_bytes_per_cycle
        beside, count = ceil(across / self.panels), _size(problem.products)
        waves = ceil(below * beside * count / machine.threads)
        largest = min(1, self.tall / self.rows / tiles) * min(1, self.panels / across)
        cycles *= (waves - 1) / (below * beside) + largest
        return PROCESSOR.beside(cycles / PROCESSOR.cycles_per_second, _reading(problem, machine))

    def _products(self, problem: Problem, machine: Machine, k: int) -> float:
        """Cycles of a step's products. Rows of a in the same sets of the nearest cache put each other out of it, and
        only some rows are read ahead from farther away."""
        # Where there is one panel, it is known which vectors lie behind its edge.
        vectors = min(self.vectors, max(1, ceil(_size(problem.n) / machine.lanes)))
        vectors = self.vectors if self.depth else vectors
        sums = self.rows * vectors / PROCESSOR.fused_per_cycle
        sums = PROCESSOR.beside(sums, (self.rows + vectors) / PROCESSOR.loads_per_cycle)
        if problem.right is not problem.total and not self.widens(problem):
            sums += vectors * PROCESSOR.widening_cycles
        step = PROCESSOR.beside(sums, PROCESSOR.fused_latency)
        if problem.transpose_a:
            return step
        row = k * problem.dtype.nbytes
        kept = _kept_rows(row, PROCESSOR.near_bytes)
        step += max(0, self.rows - kept) * PROCESSOR.missed_cycles
        if _size(problem.height) * row > machine.fast_memory * machine.threads:
            step += max(0, self.rows - PROCESSOR.rows_ahead) * PROCESSOR.late_cycles
        return step

    def _step(self, problem: Problem, machine: Machine, depth: int, products: float) -> float:
        """Cycles of a step: of its products, or of reading a row of a panel that was read before."""
        row = self.wide * problem.right.nbytes
        if not self.in_place:
            return max(products, row / PROCESSOR.rate(depth * row, machine))
        apart = _size(problem.n) * problem.right.nbytes
        is_kept = depth <= _kept_rows(apart, machine.fast_memory)
        read = row / PROCESSOR.rate(depth * row if is_kept else machine.fast_memory, machine)
        return PROCESSOR.beside(products, read + _page_cycles(apart, depth, PROCESSOR.page_cycles))

    def _fetching(self, problem: Problem, machine: Machine, below: int, products: float) -> float:
        """Cycles for each row of b in a panel: of fetching it for the first time, and of copies. The next blocks of the
        same columns find it in a core's cache, if that keeps it so long."""
        k, nbytes = _size(problem.k), problem.right.nbytes
        row, apart = self.wide * nbytes, _size(problem.n) * nbytes
        far = max(0, 1 - machine.fast_memory * machine.threads / max(1, k * apart))
        # Panels that take turns find what the first of them has found.
        first = (far * PROCESSOR.fetch_cycles + _page_cycles(apart, k, 0)) / self.panels
        used = k * (row * self.panels + self.tall * problem.dtype.nbytes)
        is_kept = self.order == (1, 0) and used <= PROCESSOR.kept_share * machine.fast_memory
        times, copied = 1 if is_kept else below, row / PROCESSOR.copied_bytes_per_cycle
        if self.in_place:
            return times * (PROCESSOR.beside(products, first + far * copied) - products)
        return times * first + below * copied

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Panels]:
        """Other orders of blocks, and other depths and panels beside each other."""
        if self.few is not None or self.columns:
            return
        if self.depth == 0 and self.tall < _size(problem.height):
            yield replace(self, order=(self.order[1], self.order[0]))
        beside = ceil(_size(problem.n) / self.wide)
        for depth in _DEPTHS if self.depth else ():
            for panels in _PANELS:
                if panels <= beside and depth < _size(problem.k):
                    yield replace(self, depth=depth, panels=panels)


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
    if not isinstance(problem.m, int):
        return _unknown(problem, machine)
    few: list[FewRows] = []
    if problem.m <= MOST_ROWS and not problem.packed:
        few = [_few_rows(problem, machine)]
    return chain(few, _known(problem, machine))


def candidates_of_batches(problem: Problem, machine: Machine) -> Iterable[Panels]:
    return _known(problem, machine)


def _unknown(problem: Problem, machine: Machine) -> Iterator[Panels]:
    """Panels, for rows that only a call counts: it may have few."""
    few, k = _few_rows(problem, machine), problem.k
    is_short = isinstance(k, int) and k <= PROCESSOR.cached_panel_rows
    depth = 0 if problem.packed or is_short else PROCESSOR.cached_panel_rows // 2
    for rows, vectors in _tiles_of(problem, machine):
        plan = Panels(rows, vectors, rows, machine.lanes, depth)
        columns = ceil(few.columns / plan.wide) * plan.wide
        yield replace(
            plan, tall=_tall(problem, plan.own, machine), columns=columns,
            few=None if problem.packed else replace(few, columns=columns),
        )  # fmt: skip


def _known(problem: Problem, machine: Machine) -> Iterator[Panels]:
    """Panels, for a number of rows that is known."""
    height, ways = _size(problem.height), _ways(problem)
    # Where all of b stays in the cores' caches, neighbours in c are made one after another.
    nbytes = _elements_of_b(problem) * problem.right.nbytes
    is_near = nbytes <= machine.fast_memory * machine.threads
    extents = isinstance(problem.height, int) and isinstance(problem.n, int)
    are_copied = not (problem.packed or problem.transpose_b or problem.counted)
    are_in_turn = extents and are_copied and _size(problem.k) > _DEPTHS[-1]
    for rows, vectors in _tiles_of(problem, machine):
        tiles = max(1, ceil(height / rows))
        heights = dict.fromkeys(ceil(tiles / parts) * rows for parts in _PARTS)
        if not isinstance(problem.height, int):
            own = repeat(rows, vectors) * spatial(1, machine.lanes)
            heights = dict.fromkeys([_tall(problem, own, machine)])
        for tall in heights:
            for depth, in_place in ways:
                by_rows = is_near and tall < height and depth == 0 and (in_place or problem.packed)
                order = (0, 1) if by_rows else (1, 0)
                yield Panels(
                    rows, vectors, tall, machine.lanes, depth, in_place=in_place, order=order
                )
        plan = Panels(rows, vectors, tiles * rows, machine.lanes, _DEPTHS[-1], _PANELS[-1])
        if are_in_turn and _size(problem.n) >= plan.panels * plan.wide:
            yield plan


def _tiles_of(problem: Problem, machine: Machine) -> Iterator[Extents]:
    """Rows and vectors of tiles that leave registers for a row of b: as many rows as these allow, or fewer, or as
    many as leave none behind the last row."""
    height = max(1, _size(problem.height))
    for vectors in _VECTORS:
        most = min((machine.registers - 1 - vectors) // vectors, height)
        even = ceil(height / ceil(height / most))
        exact = {most, even} if isinstance(problem.height, int) else set()
        for rows in sorted({*exact, *(rows for rows in _ROWS if rows <= most)}, reverse=True):
            yield rows, vectors


def _ways(problem: Problem) -> list[tuple[int, bool]]:
    """Depths, and whether b is read where it lies."""
    k, is_known = problem.k, isinstance(problem.k, int)
    places = (False,) if problem.packed or problem.transpose_b else (False, True)
    is_read_so = is_known or (problem.counted and problem.packed)
    ways = [(0, in_place) for in_place in places if is_read_so or in_place]
    if not problem.counted and (not is_known or k > _DEPTHS[0]):
        ways += [(_DEPTHS[0], in_place) for in_place in places]
    return ways


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


def _tiles(measured: Iterable[tuple[int, int]], registers: int) -> list[tuple[int, int]]:
    """Rows and vectors of tiles that leave registers for a row of b, those that were measured first."""
    tiles = product(range(1, 17), range(1, 9))
    fitting = [(rows, vectors) for rows, vectors in tiles if (rows + 1) * vectors <= registers]
    return list(dict.fromkeys((*measured, *fitting)))


def _few_rows(problem: Problem, machine: Machine) -> FewRows:
    """Its columns: all, in as many equal parts as there are threads, or as the sums need."""
    m, n, lanes = problem.m, problem.n, machine.lanes
    sums = PROCESSOR.cached_sum_bytes // problem.total.nbytes
    most = max(1, sums // (max(1, m) if isinstance(m, int) else MOST_ROWS))
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
        splits = max(splits, ceil(ASSUMED_MANY / (32 * rows)))
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


def _reading(problem: Problem, machine: Machine) -> float:
    """The time in which all threads read b once."""
    nbytes = _elements_of_b(problem) * problem.right.nbytes
    cycles = nbytes / PROCESSOR.rate(nbytes, machine) / machine.threads
    return cycles / PROCESSOR.cycles_per_second


def _elements_of_b(problem: Problem) -> int:
    return _size(problem.products) * _size(problem.k) * _size(problem.n)


def _seconds(made: float, problem: Problem, machine: Machine) -> float:
    """The time of so many elements of c, by all threads, each multiplying a vector in a cycle."""
    cycles = made * _size(problem.products) * max(1, _size(problem.k)) / machine.lanes
    return cycles / (machine.threads * PROCESSOR.cycles_per_second)


def _page_cycles(apart: int, rows: int, found: float) -> float:
    """Cycles of finding the page of each of so many rows that are so many bytes apart: `found` if it is found fast."""
    page = min(1, apart / PROCESSOR.page_bytes)
    lost = max(0, 1 - PROCESSOR.pages_found_fast / max(1, rows * page))
    return page * (found + lost * PROCESSOR.search_cycles)


def _kept_rows(apart: int, cache: int) -> int:
    """How many rows have room in a cache for a line of each, that are so many bytes apart."""
    period = cache // PROCESSOR.ways
    return PROCESSOR.ways * period // gcd(max(1, apart), period)


# --- The smallest problem that a plan computes as it does a large one: a simulator runs it in a second or two
# Remainders of a block, a step of k and a wide access stay as they were, and there are more steps than stages.


def smallest(
    problem: Problem, plan: Tiling | Vectors | Panels | FewRows, machine: Machine
) -> Problem:
    """A block, or a cluster of blocks, and a few steps of each part of k; on a processor the problem as it is."""
    least = GPU.shortest_copied_extent if is_worth_copying(problem, machine) else 1

    def fewer(extent: Extent, step: int, count: int = 1) -> Extent:
        count = max(count, ceil(least / step))
        if not isinstance(extent, int) or extent <= count * step:
            return extent
        return count * step + extent % step

    m, n, k = problem.m, problem.n, problem.k
    if isinstance(plan, Tiling):
        (high, broad), (tall, wide) = plan.block, plan.cluster
        k = fewer(k, plan.parts * plan.depth, plan.stages + 1)
        return replace(problem, m=fewer(m, tall * high), n=fewer(n, wide * broad), k=k)
    if isinstance(plan, Vectors):
        length, steps = plan.matrix.shape
        k = fewer(k, plan.parts * steps, 2)
        if are_rows(problem):
            return replace(problem, n=fewer(n, length), k=k)
        return replace(problem, m=fewer(m, length), k=k)
    return problem
