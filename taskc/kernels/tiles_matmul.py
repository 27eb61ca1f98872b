"""Matrix products where a block is many workers around a shared memory: `matmul`'s form for GPUs.

    own = warps * repeat * fragment

says who has which part of a block's result: each warp has a rectangle of fragments. The fragment is that of
the matrix instruction that the machine has for these types, or, where it has none, a square of registers
that are added to by fused multiply-adds. Both operands go through shared memory, a few steps of k ahead.

Where an instruction runs beside its workers, warpgroups multiply and a producer loads for them; then blocks
run over several tiles, and results are stored as whole tiles. The text is the same, but for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import taskc as tc
from taskc import DType, Machine, Mapping, TensorType, repeat, spatial
from taskc.kernels.padding import pitch

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
    """

    own: Mapping
    depth: int
    stages: int
    group: int = 8
    parts: int = 1
    ahead: bool = False
    cluster: tuple[int, int] = (1, 1)

    def bytes(self, size: int) -> int:
        """What the operands take in shared memory."""
        return self.stages * self.depth * sum(self.own.shape) * size


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
    *((256, 2, 1.7), (192, 2, 1.6), (128, 2, 1.5), (256, 1, 1.3), (128, 1, 1.1)),
    *((64, 1, 0.9), (32, 1, 0.6)),
)
_LINE_AHEAD = 128  # bytes of k: the widest swizzle
_LINE = 64  # bytes of k in each row of a block's operands
_MOST_STAGES = 4
_DEEPEST_PART = 512  # steps of k from which on it is worth to split


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
) -> Tiling:
    """The tile that takes the least time, if waves of blocks take as long as their tiles are large."""
    most = 1 << 13
    rows, columns = (x if isinstance(x, int) else most for x in (m, n))

    def cost(candidate: tuple[Tiling, float]) -> float:
        tiling, speed = candidate
        tall, wide = tiling.own.shape
        blocks = ceil(rows / tall) * ceil(columns / wide) * tiling.parts
        waves = max(1, blocks / machine.threads)
        return ceil(waves) * tall * wide / tiling.parts / speed

    candidates = list(_candidates(k, types, machine, transpose_b))
    pitches = (m if transpose_a else k, k if transpose_b else n)
    along_k = transpose_b and not transpose_a
    if padded or all(_multiple(x) * types[0].nbytes % 16 == 0 for x in pitches):
        candidates += _beside(types, machine, along_k=along_k)
    return min(candidates, key=cost)[0]


def _multiple(extent: Extent) -> int:
    return extent if isinstance(extent, int) else int(extent.variable.multiple)


def _beside(types: Types, machine: Machine, *, along_k: bool) -> Iterator[tuple[Tiling, float]]:
    """By instructions that run beside their workers; rows that bulk copies take are given."""
    size = types[0].nbytes
    rows = {row.shape[1]: row for row in machine.instructions(*types) if row.asynchronous}
    depth = _LINE_AHEAD // size
    for columns, count, speed in _WARPGROUPS:
        row = rows.get(columns)
        if row is None or not (along_k or any(form.along == "mn" for form in row.memory)):
            continue
        own = spatial(count, 1) * row.accumulator_fragment
        results = 2 * own.shape[0] * _LINE_AHEAD + 1024
        stages = min(6, (machine.near - results) // (depth * sum(own.shape) * size))
        yield Tiling(own, depth, stages, ahead=True), speed


def _candidates(
    k: Extent, types: Types, machine: Machine, transpose_b: bool
) -> Iterator[tuple[Tiling, float]]:
    row = next(iter(machine.instructions(*types)), None)
    # Neighbours of a warp read neighbouring rows of either operand; of b's rows, a worker four at once.
    square = repeat(4, 1) * spatial(4, 8) * repeat(1, 4)
    if transpose_b:
        square = repeat(4, 4) * spatial(4, 8)
    fragment = row.accumulator_fragment if row else square
    size = types[0].nbytes
    depth = _LINE // size if row else 8
    for warps, fragments, speed in _FRAGMENTS if row else _SQUARES:
        own = spatial(*warps) * repeat(*fragments) * fragment
        fits = machine.near // (depth * sum(own.shape) * size)
        stages = min(_MOST_STAGES, fits)
        for parts in (1, 2, 3, 4, 6, 8, 12, 16):
            if parts == 1 or (isinstance(k, int) and k >= parts * _DEEPEST_PART):
                # What the parts come to has to be added up.
                yield Tiling(own, depth, stages, parts=parts), speed * (1 if parts == 1 else 0.9)


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
    tiling: Tiling | None = None,
    padded: bool = False,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]), as `matmul` has it.

    right   b's type, where it isn't a's
    result  c's type, to which `activation(…)` is converted in the end; `total` if not said
    padded  the rows of a and b have zeros behind them, up to their `pitch`
    """
    total = total or dtype
    into, right_type = result or total, right or dtype
    plan = tiling or choose(
        m, n, k, (dtype, right_type, total), machine,
        transpose_a=transpose_a, transpose_b=transpose_b, padded=padded,
    )  # fmt: skip
    own, depth, parts = plan.own, plan.depth, plan.parts
    tall, wide = own.shape
    rows, columns = (k, m) if transpose_a else (m, k)
    left = dtype[rows, pitch(columns, dtype) if padded else columns]
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
        if transpose_a:
            sa = tc.load(a[q : q + depth, row : row + tall])
            if transpose_b:
                sb = tc.load(b[col : col + wide, q : q + depth])
                tc.mma(acc, sa.T, sb.T)
            else:
                sb = tc.load(b[q : q + depth, col : col + wide])
                tc.mma(acc, sa.T, sb)
        else:
            sa = tc.load(a[row : row + tall, q : q + depth])
            if transpose_b:
                sb = tc.load(b[col : col + wide, q : q + depth])
                tc.mma(acc, sa, sb.T)
            else:
                sb = tc.load(b[q : q + depth, col : col + wide])
                tc.mma(acc, sa, sb)

    @tc.function
    def whole(a, b, offsets, c):
        for row, col in tc.tiles(
            (m, n),
            by=(tall, wide),
            order=("grouped", plan.group),
            persistent=plan.ahead,
            cluster=plan.cluster,
        ):
            acc = tc.tile(total, own, 0)
            for p in tc.pipeline(k, by=depth, stages=plan.stages, specialize=plan.ahead):
                multiply(acc, a, b, row, col, p)
            if plan.ahead:
                done = tc.tile(into, own)
                for i, j in own:
                    done[i, j] = finished(acc[i, j], offsets, min(col + j, n - 1))
                tc.store(c[row : row + tall, col : col + wide], done)
            else:
                for i, j in own:
                    if row + i < m and col + j < n:
                        c[row + i, col + j] = finished(acc[i, j], offsets, col + j)

    if parts > 1:
        return _split(m, n, k, plan, (left, other, total, into), multiply, finished, bias=bias)
    if bias:

        @tc.kernel(workers=own.workers)
        def matmul(a: left, b: other, offsets: total[n], c: tc.out[into[m, n]]):
            whole(a, b, offsets, c)
    else:

        @tc.kernel(workers=own.workers)
        def matmul(a: left, b: other, c: tc.out[into[m, n]]):
            whole(a, b, None, c)

    return matmul


def _split(
    m: Extent,
    n: Extent,
    k: int,
    plan: Tiling,
    types: tuple[TensorType, TensorType, DType, DType],
    multiply: Any,
    finished: Any,
    *,
    bias: bool,
) -> tc.ProgramDefinition:
    """Parts of k by blocks of their own, and a second kernel that adds them up, the first part first."""
    left, right, total, into = types
    own, parts = plan.own, plan.parts
    tall, wide = own.shape
    deep = ceil(k / (parts * plan.depth)) * plan.depth  # the last parts are shorter, or empty
    lines = spatial(8, 32)

    @tc.kernel(workers=own.workers)
    def partial(a: left, b: right, sums: tc.out[total[parts, m, n]]):
        for part, row, col in tc.tiles((parts, m, n), by=(1, tall, wide)):
            acc = tc.tile(total, own, 0)
            for p in tc.pipeline(deep, by=plan.depth, stages=plan.stages):
                multiply(acc, a, b, row, col, part * deep + p)
            tc.store(sums[part, row : row + tall, col : col + wide], acc)

    @tc.function
    def add(sums, offsets, c):
        for row, col in tc.tiles((m, n), by=lines.shape):
            for i, j in lines:
                if row + i < m and col + j < n:
                    value = sums[0, row + i, col + j]
                    for part in tc.static(range(1, parts)):
                        value += sums[part, row + i, col + j]
                    c[row + i, col + j] = finished(value, offsets, col + j)

    if bias:

        @tc.kernel(workers=lines.workers)
        def biased(sums: total[parts, m, n], offsets: total[n], c: tc.out[into[m, n]]):
            add(sums, offsets, c)

        @tc.program
        def matmul(a: left, b: right, offsets: total[n], c: tc.out[into[m, n]]):
            sums = tc.empty(total[parts, m, n])
            partial(a, b, out=sums)
            biased(sums, offsets, out=c)
    else:

        @tc.kernel(workers=lines.workers)
        def added(sums: total[parts, m, n], c: tc.out[into[m, n]]):
            add(sums, None, c)

        @tc.program
        def matmul(a: left, b: right, c: tc.out[into[m, n]]):
            sums = tc.empty(total[parts, m, n])
            partial(a, b, out=sums)
            added(sums, out=c)

    return matmul
