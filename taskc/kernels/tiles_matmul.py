"""Matrix products where a block is many workers around a shared memory: `matmul`'s form for GPUs.

    own = warps * repeat * fragment

says who has which part of a block's result: each warp has a rectangle of fragments. The fragment is that of
the matrix instruction that the machine has for these types, or, where it has none, a square of registers
that are added to by fused multiply-adds. Both operands go through shared memory, a few steps of k ahead.

Where an instruction runs beside its workers, warpgroups multiply and a producer loads for them; then blocks
run over several tiles, results are stored as whole tiles, and of the largest tiles two blocks share a load of
b. The text is the same, but for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import taskc as tc
from taskc import DType, Machine, Mapping, TensorType, repeat, spatial
from taskc.ir.target import WarpgroupInstruction
from taskc.kernels.padding import pitch
from taskc.kernels.split_matmul import in_parts

Extent = Any  # an int, or a tc.dim
Types = tuple[DType, DType, DType]  # of both operands and the sum


@dataclass(frozen=True, slots=True)
class Tiling:
    """own     who has which part of a block's result
    depth   steps of k that are loaded together
    stages  of these loads, how many there is memory for
    group   rows of blocks that are near each other in time: their part of b stays in the cache
    parts   of k, each summed by blocks of its own
    ahead   a producer loads, from one tile of a block to the next
    cluster neighbouring blocks that load for each other what is the same for them; its extents have to divide
            the numbers of tiles
    turned  `own` is of c.T = b.T @ a.T, whose columns are the few rows of a: what an instruction has most of
            are rows
    """

    own: Mapping
    depth: int
    stages: int
    group: int = 8
    parts: int = 1
    ahead: bool = False
    cluster: tuple[int, int] = (1, 1)
    turned: bool = False

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of c that a block has."""
        tall, wide = self.own.shape
        return (wide, tall) if self.turned else (tall, wide)

    def bytes(self, size: int) -> int:
        """What the operands take in shared memory."""
        return self.stages * self.depth * sum(self.own.shape) * size


@dataclass(frozen=True, slots=True)
class Gathered:
    """A left operand that isn't laid out as a matrix: the pixels that a filter covers, for one.

    type  of what it is gathered from
    load  load(a, row, q): the block value of a block's rows and a step of k
    """

    type: TensorType
    load: Callable[..., Any]


# Fragments of a warp, rows by columns, and the warps of a block; and how much of the peak that reaches.
# A fragment of an instruction is 16 x 8, of fused multiply-adds 16 x 32.
_FRAGMENTS = (
    *(((2, 4), (4, 8), 1.0), ((2, 2), (4, 8), 0.95), ((2, 2), (4, 4), 0.8), ((2, 2), (2, 4), 0.6)),
    *(((1, 4), (1, 4), 0.4), ((1, 4), (1, 2), 0.3), ((2, 2), (1, 2), 0.25)),
)
_SQUARES = (
    *(((4, 2), (2, 2), 1.0), ((2, 2), (2, 2), 0.8), ((2, 2), (2, 1), 0.6)),
    *(((2, 2), (1, 1), 0.4), ((1, 2), (1, 1), 0.25)),
)
# Columns of a warpgroup's fragment, warpgroups, and the same.
_WARPGROUPS = (
    *((256, 2, 1.7), (192, 2, 1.6), (128, 2, 1.5), (64, 2, 1.3), (256, 1, 1.3), (128, 1, 1.1)),
    *((64, 1, 0.9), (32, 1, 0.6)),
)
_LINE_AHEAD = 128  # bytes of k: the widest swizzle
_LINE = 64  # bytes of k in each row of a block's operands
_MOST_STAGES = 4
_SPREAD = 32  # bytes
_MOST_TURNED = 64  # rows of a
_MOST_PARTS = 16
_LEAST_PART = 256  # steps of k

# Of a multiprocessor in a cycle: multiply-adds by instructions on operands of a byte, by workers, bytes of
# operands that it loads, and of parts that it stores or loads. Cycles until the kernel runs that adds them.
_MULTIPLIED, _FUSED, _LOADED, _CARRIED, _NEXT_KERNEL = 2048, 64, 48, 32, 3000


def choose(
    m: Extent,
    n: Extent,
    k: Extent,
    types: Types,
    machine: Machine,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    padded: bool = False,
    ahead: bool = True,
    even: bool = False,
    rounded: bool = False,
) -> Tiling:
    """The tile that takes the least time, if waves of blocks take as long as their tiles are large and deep.

    ahead    a producer may load, by bulk copies
    even     no part of k has more steps than another, nor more than there are
    rounded  operands are rounded before they are multiplied
    """
    most = 1 << 13
    rows, columns, deep = (x if isinstance(x, int) else most for x in (m, n, k))
    size = types[0].nbytes
    rate = _MULTIPLIED / size if machine.instructions(*types) else _FUSED

    def tiles(tiling: Tiling) -> int:
        tall, wide = tiling.block
        return ceil(rows / tall) * ceil(columns / wide)

    def cost(candidate: tuple[Tiling, float]) -> float:
        """In cycles."""
        tiling, speed = candidate
        (tall, wide), parts = tiling.own.shape, tiling.parts
        waves = max(1, tiles(tiling) * parts / machine.threads)
        steps = ceil(deep / (parts * tiling.depth)) * tiling.depth
        step = max(tall * wide / (rate * speed), (tall + wide) * size / _LOADED)
        carried = 2 * parts * rows * columns * types[2].nbytes / (machine.threads * _CARRIED)
        return ceil(waves) * steps * step + (carried + _NEXT_KERNEL if parts > 1 else 0)

    candidates = list(_candidates(types, machine, transpose_a, transpose_b))
    pitches = (m if transpose_a else k, k if transpose_b else n)
    along_k = transpose_b and not transpose_a
    # Operands that go from memory to the instruction can't be rounded on the way.
    if not rounded and (padded or all(_multiple(x) * size % 16 == 0 for x in pitches)):
        # First, since of plans that take as long those have more bytes under way.
        beside = _beside(types, machine, rows, along_k=along_k, ahead=ahead)
        candidates = [*beside, *candidates]
    most_parts = min(_MOST_PARTS, k // _LEAST_PART) if isinstance(k, int) else 1
    parted = [
        (replace(tiling, parts=parts), speed)
        for parts in range(1, max(1, most_parts) + 1)
        for tiling, speed in candidates
        if parts == 1 or tiles(tiling) < machine.threads
        if parts == 1 or not even or k % (parts * tiling.depth) == 0
    ]
    return _in_clusters(min(parted, key=cost)[0], m)


def _in_clusters(tiling: Tiling, m: Extent) -> Tiling:
    """Blocks one below the other load b's part for each other, where none is left without a neighbour.

    With the largest tiles a step's operands come about as fast as they are multiplied; with others, or of
    parts of k, blocks are few or wait for something else.
    """
    is_largest = tiling.own.workers == 256 and tiling.own.shape[1] == _WARPGROUPS[0][0]
    if not (tiling.ahead and is_largest and tiling.parts == 1) or not isinstance(m, int):
        return tiling
    return replace(tiling, cluster=(1 if ceil(m / tiling.block[0]) % 2 else 2, 1))


def _multiple(extent: Extent) -> int:
    return extent if isinstance(extent, int) else int(extent.variable.multiple)


def _beside(
    types: Types, machine: Machine, few: int, *, along_k: bool, ahead: bool
) -> Iterator[tuple[Tiling, float]]:
    """By instructions that run beside their workers; a has `few` rows, and bulk copies take those given."""
    size = types[0].nbytes
    depth = _LINE_AHEAD // size

    def tiling(fragment: Mapping, count: int, *, turned: bool = False) -> Tiling:
        own = spatial(count, 1) * fragment
        results = 2 * own.shape[0] * _LINE_AHEAD + 1024
        stages = min(6, (machine.near - results) // (depth * sum(own.shape) * size))
        return Tiling(own, depth, stages, ahead=ahead, turned=turned)

    def fragments(types: Types) -> dict[int, Mapping]:
        """By their columns, of instructions that take the operands as they lie."""
        return {
            row.shape[1]: row.accumulator_fragment
            for row in machine.instructions(*types)
            if isinstance(row, WarpgroupInstruction)
            and (along_k or any(form.along == "mn" for form in row.memory))
        }

    straight = fragments(types)
    for columns, count, speed in _WARPGROUPS:
        if columns in straight:
            yield tiling(straight[columns], count), speed if ahead else 0.9 * speed
    turned = fragments((types[1], types[0], types[2])) if ahead else {}
    wide_enough = [columns for columns in turned if few <= columns <= _MOST_TURNED]
    if wide_enough:
        for count in (2, 1):
            yield tiling(turned[min(wide_enough)], count, turned=True), 1.0


def _candidates(
    types: Types, machine: Machine, transpose_a: bool, transpose_b: bool
) -> Iterator[tuple[Tiling, float]]:
    row = next(iter(machine.instructions(*types)), None)
    # Neighbours of a warp read neighbouring rows of either operand; of b's rows, a worker four at once.
    square = repeat(4, 1) * spatial(4, 8) * repeat(1, 4)
    if transpose_b:
        square = repeat(4, 4) * spatial(4, 8)
    fragment = row.accumulator_fragment if row else square
    size = types[0].nbytes
    depth = _LINE // size if row else 8
    # What instructions don't load whole has some room behind each row, for the banks.
    spread = _SPREAD * (transpose_a + (not transpose_b)) if row and size != 2 else 0
    for warps, fragments, speed in _FRAGMENTS if row else _SQUARES:
        own = spatial(*warps) * repeat(*fragments) * fragment
        fits = machine.near // (depth * (sum(own.shape) * size + spread))
        stages = min(_MOST_STAGES, fits)
        yield Tiling(own, depth, stages), speed


def tiles_matmul(
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    machine: Machine,
    dtype: DType,
    right: DType | None = None,
    total: DType | None = None,
    result: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: bool = False,
    activation: Any = None,
    by: DType | None = None,
    tiling: Tiling | None = None,
    padded: bool = False,
    gathered: Gathered | None = None,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]), as `matmul` has it.

    right     b's type, where it isn't a's
    result    c's type, to which `activation(…)` is converted in the end; `total` if not said
    by        what operands are rounded to, of as many bytes
    padded    the rows of a and b have zeros behind them, up to their `pitch`
    gathered  a isn't given as a matrix
    """
    total = total or dtype
    into, right_type = result or total, right or dtype
    plan = tiling or choose(
        m, n, k, (by or dtype, by or right_type, total), machine,
        transpose_a=transpose_a, transpose_b=transpose_b, padded=padded, rounded=by is not None,
    )  # fmt: skip
    own, depth = plan.own, plan.depth
    tall, wide = own.shape
    high, broad = plan.block
    transpose_left, transpose_right = transpose_a, transpose_b
    if plan.turned:
        transpose_left, transpose_right = not transpose_b, not transpose_a
    rows, columns = (k, m) if transpose_a else (m, k)
    left = gathered.type if gathered else dtype[rows, pitch(columns, dtype) if padded else columns]
    rows, columns = (n, k) if transpose_b else (k, n)
    other = right_type[rows, pitch(columns, right_type) if padded else columns]

    @tc.function
    def moved(value, offsets, j):
        if bias:
            return value + offsets[j]
        else:
            return value

    @tc.function
    def finished(value, offsets, j):
        if activation is None:
            return moved(value, offsets, j).to(into)
        else:
            return activation(moved(value, offsets, j)).to(into)

    @tc.function
    def multiply(acc, a, b, row, col, q):
        """What one step adds: each operand lies as it is given."""
        if transpose_left:
            sa = tc.load(a[q : q + depth, row : row + tall])
            if transpose_right:
                sb = tc.load(b[col : col + wide, q : q + depth])
                tc.mma(acc, sa.T, sb.T, by=by)
            else:
                sb = tc.load(b[q : q + depth, col : col + wide])
                tc.mma(acc, sa.T, sb, by=by)
        else:
            if gathered is not None and not plan.turned:
                sa = gathered.load(a, row, q)
            else:
                sa = tc.load(a[row : row + tall, q : q + depth])
            if transpose_right:
                if gathered is not None and plan.turned:
                    sb = gathered.load(b, col, q)
                else:
                    sb = tc.load(b[col : col + wide, q : q + depth])
                tc.mma(acc, sa, sb.T, by=by)
            else:
                sb = tc.load(b[q : q + depth, col : col + wide])
                tc.mma(acc, sa, sb, by=by)

    @tc.function
    def summed(a, b, row, col, first, steps):
        """The sums over `steps` of k from `first` on."""
        acc = tc.tile(total, own, 0)
        for p in tc.pipeline(steps, by=depth, stages=plan.stages, specialize=plan.ahead):
            if plan.turned:
                multiply(acc, b, a, col, row, first + p)
            else:
                multiply(acc, a, b, row, col, first + p)
        return acc

    @tc.function
    def turned_back(done):
        """c's part, of its transpose."""
        made = tc.shared(done.dtype[high, broad])
        for j, i in own:
            made[i, j] = done[j, i]
        return made

    @tc.function
    def whole(a, b, offsets, c):
        for row, col in tc.tiles(
            (m, n),
            by=plan.block,
            order=("grouped", plan.group),
            persistent=plan.ahead,
            cluster=plan.cluster,
        ):
            acc = summed(a, b, row, col, 0, k)
            if plan.turned:
                done = tc.tile(into, own)
                for j, i in own:
                    done[j, i] = finished(acc[j, i], offsets, min(col + j, n - 1))
                made = turned_back(done)
                tc.store(c[row : row + high, col : col + broad], made)
            elif plan.ahead:
                done = tc.tile(into, own)
                for i, j in own:
                    done[i, j] = finished(acc[i, j], offsets, min(col + j, n - 1))
                tc.store(c[row : row + tall, col : col + wide], done)
            else:
                for i, j in own:
                    if row + i < m and col + j < n:
                        c[row + i, col + j] = finished(acc[i, j], offsets, col + j)

    if plan.parts > 1:
        sums = total[plan.parts, m, n]
        steps = ceil(k / (plan.parts * depth)) * depth

        @tc.kernel(workers=own.workers)
        def partial(a: left, b: other, sums: tc.out[sums]):
            for part, row, col in tc.tiles(sums.shape, by=(1, high, broad), persistent=plan.ahead):
                acc = summed(a, b, row, col, part * steps, steps)
                if plan.turned:
                    made = turned_back(acc)
                    tc.store(sums[part, row : row + high, col : col + broad], made)
                else:
                    tc.store(sums[part, row : row + high, col : col + broad], acc)

        types = left, other, into
        return in_parts(partial, sums, types, finished, bias=bias, machine=machine)
    if bias:

        @tc.kernel(workers=own.workers)
        def matmul(a: left, b: other, offsets: total[n], c: tc.out[into[m, n]]):
            whole(a, b, offsets, c)
    else:

        @tc.kernel(workers=own.workers)
        def matmul(a: left, b: other, c: tc.out[into[m, n]]):
            whole(a, b, None, c)

    return matmul
