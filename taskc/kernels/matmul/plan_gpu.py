"""How a GEMM is computed on GPUs, as data: by tiles of blocks, or, of few vectors, along the matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import ceil, prod

from taskc import DType, Machine, Mapping, repeat, replicate, spatial
from taskc.dataclass import dataclass
from taskc.ir.target import WarpgroupInstruction
from taskc.kernels.machine_facts import GPU, UNMEASURED_SHARE
from taskc.kernels.matmul.problem import Problem, Types
from taskc.kernels.owners import power, width
from taskc.kernels.signatures import ASSUMED_GPU_EXTENT, Extent, known

MOST_VECTORS = 4  # with more of them arithmetic takes longer than memory
_size = partial(known, assumed=ASSUMED_GPU_EXTENT)
_MOST_SWAPPED = 64  # rows of a: an instruction's columns
_STAGES, _STAGES_OF_PRODUCER = 4, 6
_LEAST_STEPS = 2  # of a part of k, of vectors


@dataclass(frozen=True, slots=True)
class Tiling:
    """own     who has which part of a block's result
    depth   steps of k that are loaded together
    stages  of these loads, how many there is memory for
    group   rows of blocks that are near each other in time: their part of b stays in the cache
    parts   of k, each summed by blocks of its own (split-k)
    specialize   a producer loads, from one tile of a block to the next (warp specialization, persistent blocks)
    cluster neighbouring blocks that load for each other what is the same for them; its extents have to divide
            the numbers of tiles
    consumers  1, or 2 that take tiles in turn, each `own.workers`: while one multiplies, the other stores (ping-pong)
    swap_ab  `own` is of c.T = b.T @ a.T, whose columns are the few rows of a: what an instruction has most of
            are rows
    """

    own: Mapping
    depth: int
    stages: int
    group: int = 8
    parts: int = 1
    specialize: bool = False
    cluster: tuple[int, int] = (1, 1)
    swap_ab: bool = False
    consumers: int = 1

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of c that a block has."""
        tall, wide = self.own.shape
        return (wide, tall) if self.swap_ab else (tall, wide)

    def bytes(self, size: int) -> int:
        """Bytes of the operands in shared memory."""
        return self.stages * self.depth * sum(self.own.shape) * size

    def tiles(self, problem: Problem) -> int:
        tall, wide = self.block
        return ceil(_size(problem.m) / tall) * ceil(_size(problem.n) / wide)

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Waves of blocks take as long as their tiles are large and deep; parts of k are carried to memory."""
        (tall, wide), parts, types = self.own.shape, self.parts, problem.multiplied
        size = problem.dtype.nbytes
        rate = (
            GPU.byte_products_per_cycle / size
            if _has_instruction(types, machine)
            else GPU.fused_per_cycle
        )
        waves = max(1, self.tiles(problem) * parts / machine.threads)
        steps = ceil(_size(problem.k) / (parts * self.depth)) * self.depth
        share = self._share(problem, machine)
        step = max(tall * wide / (rate * share), (tall + wide) * size / GPU.operand_bytes_per_cycle)
        moved = 2 * parts * _size(problem.m) * _size(problem.n) * problem.total.nbytes
        carried = moved / (machine.threads * GPU.part_bytes_per_cycle)
        epilogue = self._epilogue(problem, machine)
        # A consumer's products take turns with the others', beside which it stores.
        tile = max(steps * step, (steps * step + epilogue) / self.consumers)
        cycles = ceil(waves) * tile + (epilogue if self.consumers > 1 else 0)
        in_turn = ceil(waves) if self.specialize else 1  # others are beside each other
        cycles = max(cycles, in_turn * steps / self.depth * GPU.step_cycles)
        return (
            cycles + (carried + GPU.next_kernel_cycles if parts > 1 else 0)
        ) / GPU.cycles_per_second

    def _epilogue(self, problem: Problem, machine: Machine) -> float:
        """Cycles of a tile in which nobody multiplies: where warpgroups can, blocks have a multiprocessor each."""
        if self.parts > 1 or not _warpgroups(problem.multiplied, machine):
            return 0
        moved = prod(self.own.shape) * problem.result.nbytes * (2 if problem.residual else 1)
        return moved / GPU.result_bytes_per_cycle

    def _share(self, problem: Problem, machine: Machine) -> float:
        """The share of the peak that is reached."""
        types = problem.multiplied
        asynchronous = _warpgroups(types, machine)
        if held_owners(problem, self, machine) is not None:
            columns = self.own.shape[1]
            share = asynchronous.get(self.own, UNMEASURED_SHARE)
            return share * columns / (columns + GPU.held_columns)
        if self.swap_ab:
            return GPU.transposed_share
        if self.consumers > 1:
            shape = self.own.shape  # shared memory is read as by two warpgroups of one tile
            return max(s for own, s in asynchronous.items() if own.shape == shape)
        if self.own in asynchronous:
            return asynchronous[self.own] * (1 if self.specialize else GPU.share_without_producer)
        return _warps(types, machine, _square(problem, machine)).get(self.own, UNMEASURED_SHARE)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Tiling]:
        clusters = {self.cluster, (1, 1)}
        if self.specialize and self.parts == 1 and isinstance(problem.m, int):
            high = ceil(problem.m / self.block[0])
            clusters |= {(2, 1)} if high % 2 == 0 else set()
        for stages in range(self.stages, 1, -1):
            for group in (8, 4, 16):
                for cluster in sorted(clusters):
                    yield replace(self, stages=stages, group=group, cluster=cluster)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Who has what of a block's step, and in how many parts k is gone through.

    matrix    [column, q]
    vectors   [vector, q]
    products  [vector, column, q]
    sums      [vector, column, walker]: q is walker q // run % walkers's
    """

    matrix: Mapping
    vectors: Mapping
    products: Mapping
    sums: Mapping
    run: int
    parts: int = 1

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as reading both operands."""
        m, n, k = (_size(extent) for extent in (problem.m, problem.n, problem.k))
        return (m * k * problem.dtype.nbytes + k * n * problem.right.nbytes) / GPU.bytes_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Vectors]:
        most = problem.k // self.matrix.shape[1] if isinstance(problem.k, int) else 1
        for parts in {self.parts, *(p for p in (1, 2, 4, 8, 16, 32) if p <= max(1, most))}:
            yield replace(self, parts=parts)


def candidates_gpu(problem: Problem, machine: Machine) -> Iterable[Tiling | Vectors]:
    if problem.gathered is None and not problem.pitched and has_vectors(problem):
        return [_vectors(problem, machine)]
    return candidate_tilings(problem, machine)


def candidate_tilings(problem: Problem, machine: Machine) -> Iterator[Tiling]:
    """First those that run beside their workers: of plans that take as long those have more bytes under way."""
    whole = [*_asynchronous(problem, machine), *_by_warps(problem, machine)]
    k = problem.k
    most = min(GPU.most_parts, k // GPU.least_part_steps) if isinstance(k, int) else 1
    for parts in range(1, max(1, most) + 1):
        for tiling in whole:
            # No part of what is gathered has more steps than another.
            is_even = problem.gathered is None or k % (parts * tiling.depth) == 0
            if parts == 1 or (is_even and tiling.tiles(problem) < machine.threads):
                yield _in_clusters(replace(tiling, parts=parts), problem)


def _in_clusters(tiling: Tiling, problem: Problem) -> Tiling:
    """Blocks one below the other load b's part for each other, where none is left without a neighbour.

    With the largest tiles a step's operands come about as fast as they are multiplied; with others, or of
    parts of k, blocks are few or wait for something else. Consumers in turn, whose tiles are square, load more;
    beside a residual they have no registers left for it (two addresses are spilled).
    """
    m = problem.m
    is_largest = tiling.own.workers == 256 and tiling.own.shape[1] == max(GPU.warpgroup_tiles)[0]
    is_largest |= tiling.consumers > 1 and not problem.residual
    is_alone = tiling.parts > 1 or tiling.swap_ab or not tiling.specialize
    if is_alone or not is_largest or not isinstance(m, int):
        return tiling
    return replace(tiling, cluster=(1 if ceil(m / tiling.block[0]) % 2 else 2, 1))


def _asynchronous(problem: Problem, machine: Machine) -> Iterator[Tiling]:
    """Plans by asynchronous instructions, where bulk copies take the operands as they lie."""
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.nbytes
    pitches = (m if problem.transpose_a else k, k if problem.transpose_b else n)
    travels = problem.pitched or all(_multiple(x) * size % 16 == 0 for x in pitches)
    if problem.by is not None or not travels:
        return  # operands that go from memory to the instruction can't be rounded on the way
    depth = GPU.swizzle_bytes // size
    specialize = problem.gathered is None or problem.gathered.in_bulk

    def tiling(own: Mapping, *, swap_ab: bool = False, consumers: int = 1) -> Tiling:
        results = 2 * consumers * own.shape[0] * GPU.swizzle_bytes + 1024
        stages = (machine.fast_memory - results) // (depth * sum(own.shape) * size)
        return Tiling(
            own, depth, min(_STAGES_OF_PRODUCER, stages), specialize=specialize, swap_ab=swap_ab,
            consumers=consumers,
        )  # fmt: skip

    along_k = problem.transpose_b and not problem.transpose_a
    left, right, total = problem.multiplied
    unswapped = _fragments((left, right, total), machine, along_k=along_k)
    for columns, count in GPU.warpgroup_tiles:
        if columns in unswapped:
            yield tiling(spatial(count, 1) * unswapped[columns])
    swapped = _fragments((right, left, total), machine, along_k=along_k) if specialize else {}
    is_across = size == 4 and not (unswapped or problem.transpose_a or problem.gathered)
    if is_across and specialize:  # a number is a register: it needs no packing
        held = _fragments((right, left, total), machine, along_k=True)
        for columns, count in GPU.warpgroup_tiles:
            if columns in held:
                yield tiling(spatial(count, 1) * held[columns], swap_ab=True)
    wide_enough = [columns for columns in swapped if _size(m) <= columns <= _MOST_SWAPPED]
    if wide_enough:
        for count in (2, 1):
            yield tiling(spatial(count, 1) * swapped[min(wide_enough)], swap_ab=True)
    is_plain = problem.gathered is None and _size(k) >= GPU.least_steps_in_turn * depth
    for columns, count in GPU.tiles_in_turn if is_plain else ():
        if columns in unswapped:
            yield tiling(repeat(count, 1) * unswapped[columns], consumers=2)


def _by_warps(problem: Problem, machine: Machine) -> Iterator[Tiling]:
    types, size = problem.multiplied, problem.dtype.nbytes
    is_instruction = _has_instruction(types, machine)
    depth = GPU.step_bytes // size if is_instruction or is_turned(problem, machine) else 8
    # What instructions don't load whole has some room behind each row, for the banks.
    across = problem.transpose_a + (not problem.transpose_b)
    spread = GPU.padded_row_bytes * across if is_instruction and size != 2 else 0
    for own in _warps(types, machine, _square(problem, machine)):
        fits = machine.fast_memory // (depth * (sum(own.shape) * size + spread))
        if fits > 1:
            yield Tiling(own, depth, min(_STAGES, fits))


@cache
def _has_instruction(types: Types, machine: Machine) -> bool:
    return bool(machine.instructions(*types))


@cache
def _fragments(types: Types, machine: Machine, *, along_k: bool) -> dict[int, Mapping]:
    """The fragments, by their columns, of instructions that take the operands as they lie."""
    return {
        row.shape[1]: row.accumulator_fragment
        for row in machine.instructions(*types)
        if isinstance(row, WarpgroupInstruction)
        and (along_k or any(form.along == "mn" for form in row.memory))
    }


@cache
def _warpgroups(types: Types, machine: Machine) -> dict[Mapping, float]:
    """Who has what of a block of warpgroups, and its share of the peak."""
    fragments = _fragments(types, machine, along_k=True)
    return {
        spatial(count, 1) * fragments[columns]: share
        for (columns, count), share in GPU.warpgroup_tiles.items()
        if columns in fragments
    }


def is_turned(problem: Problem, machine: Machine) -> bool:
    """Whether operands that lie along k are turned as they are loaded: fused multiply-adds read both across k."""
    is_wide = problem.gathered is None and min(problem.dtype.nbytes, problem.right.nbytes) >= 4
    return is_wide and not _has_instruction(problem.multiplied, machine)


def held_owners(problem: Problem, plan: Tiling, machine: Machine) -> Mapping | None:
    """Who has what of the first operand in registers, where it lies across k and its instruction wants it along k."""
    left, right, total = problem.multiplied
    types = (right, left, total) if plan.swap_ab else (left, right, total)
    if not plan.specialize or (problem.transpose_b if plan.swap_ab else not problem.transpose_a):
        return None
    columns, count = plan.own.shape[1], plan.own.shape[0] // 64
    for row in machine.instructions(*types):
        if isinstance(row, WarpgroupInstruction) and row.shape[1] == columns:
            is_read = any(form.along == "mn" for form in row.memory)
            steps = repeat(1, plan.depth // row.shape[2])
            return None if is_read else spatial(count, 1) * steps * row.left_fragment
    return None


def _square(problem: Problem, machine: Machine) -> Mapping:
    """Who has what of a warp's part by fused multiply-adds.

    Of operands that lie across k a worker reads four elements at once. Of others neighbours of a warp read
    neighbouring rows; of b's rows, a worker four at once.
    """
    if is_turned(problem, machine):
        return spatial(4, 8) * repeat(4, 4)
    along = repeat(4, 4) * spatial(4, 8)
    return along if problem.transpose_b else repeat(4, 1) * spatial(4, 8) * repeat(1, 4)


@cache
def _warps(types: Types, machine: Machine, square: Mapping) -> dict[Mapping, float]:
    """Who has what of a block of warps, and its share of the peak."""
    row = next(iter(machine.instructions(*types)), None)
    fragment = row.accumulator_fragment if row else square
    shares = GPU.instruction_tiles if row else GPU.fused_tiles
    found = {
        spatial(*warps) * repeat(*fragments) * fragment: share
        for (warps, fragments), share in shares.items()
    }
    asynchronous = _warpgroups(types, machine)  # whose fragments are some warps', too
    for warps in product((1, 2, 4), repeat=2):
        for fragments in product((1, 2, 4, 8), repeat=2):
            own = spatial(*warps) * repeat(*fragments) * fragment
            is_small = own.workers <= GPU.block_workers and own.slots <= machine.registers // 2
            if is_small and own not in asynchronous:
                found.setdefault(own, UNMEASURED_SHARE)
    return found


def _multiple(extent: Extent) -> int:
    return extent if isinstance(extent, int) else int(extent.variable.multiple)


def has_vectors(problem: Problem) -> bool:
    """Whether one of the operands is so few vectors."""
    extents = problem.m, problem.n
    return any(isinstance(extent, int) and 1 <= extent <= MOST_VECTORS for extent in extents)


def are_rows(problem: Problem) -> bool:
    """Whether the vectors are rows of a, and the matrix is b; else they are columns of b, and it is a."""
    return isinstance(problem.m, int) and 1 <= problem.m <= MOST_VECTORS


def _vectors(problem: Problem, machine: Machine) -> Vectors:
    """Down the matrix, where neighbours in memory are neighbouring columns, or along it."""
    if are_rows(problem):
        count, length, kind = problem.m, problem.n, problem.right
        is_along = problem.transpose_b
    else:
        count, length, kind = problem.n, problem.m, problem.dtype
        is_along = not problem.transpose_a
    if is_along:
        plan = _along(count, length, problem.k, kind, machine)
    else:
        plan = _down(count, length, problem.k, kind)
    return replace(plan, parts=_parts(length, problem.k, plan, machine))


def _accesses(wide: int, dtype: DType) -> int:
    return min(GPU.accesses_in_flight, GPU.bytes_in_flight // (wide * dtype.nbytes))


def _down(count: int, length: Extent, k: Extent, dtype: DType) -> Vectors:
    wide = width(length, dtype)
    across = GPU.line_bytes // (wide * dtype.nbytes)
    if isinstance(length, int):
        across = min(across, power(ceil(length / wide)))
    down, deep = GPU.block_workers // across, _accesses(wide, dtype)
    if isinstance(k, int):
        deep = min(deep, power(ceil(k / down)))
    vectors, side = repeat(count, 1, 1), spatial(1, across, down, order=(0, 2, 1))
    return Vectors(
        spatial(across, down, order=(1, 0)) * repeat(wide, deep, order=(1, 0)),
        repeat(count, 1) * spatial(1, down) * replicate(across) * repeat(1, deep),
        vectors * side * repeat(1, wide, deep, order=(0, 2, 1)),
        vectors * side * repeat(1, wide, 1),
        run=deep,
    )


def _along(count: int, length: Extent, k: Extent, dtype: DType, machine: Machine) -> Vectors:
    wide = width(k, dtype)
    lanes = min(machine.lanes, power(ceil(k / wide))) if isinstance(k, int) else machine.lanes
    rows = GPU.block_workers // lanes
    # Two columns of a worker take the vectors' elements together, if that leaves blocks enough.
    tall = 1 if isinstance(length, int) and _are_few(ceil(length / (2 * rows)), machine) else 2
    trips = _accesses(wide, dtype) // tall
    if isinstance(k, int):
        trips = min(trips, power(ceil(k / (lanes * wide))))
    walk = spatial(1, lanes) * repeat(1, wide)
    block, walkers = spatial(1, rows, 1), spatial(1, 1, lanes)
    return Vectors(
        spatial(rows, 1) * repeat(tall, trips) * walk,
        replicate(rows) * repeat(count, trips) * walk,
        block * repeat(count, tall, trips) * walkers * repeat(1, 1, wide),
        block * repeat(count, tall, 1) * walkers,
        run=wide,
    )


def _are_few(blocks: int, machine: Machine) -> bool:
    """Whether so many leave multiprocessors without work."""
    return blocks < 3 * machine.threads // 2


def _parts(length: Extent, k: Extent, plan: Vectors, machine: Machine) -> int:
    if not isinstance(length, int) or not isinstance(k, int):
        return 1
    columns, steps = plan.matrix.shape
    blocks = max(1, ceil(length / columns))
    if not _are_few(blocks, machine):
        return 1
    most = GPU.vector_blocks * machine.threads // blocks
    return max(1, min(most, k // (_LEAST_STEPS * steps)))
