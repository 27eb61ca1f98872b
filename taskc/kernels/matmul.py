"""Matrix products: a block is a panel of columns, and tiles of its rows stay in vector registers.

    own = repeat(rows, vectors) * spatial(1, lanes)

says that each of `lanes` workers holds `rows` x `vectors` elements of a tile, a column each of every
vector: so a step of k is `vectors` loads of b, `rows` scalars of a, and `rows * vectors` fused
multiply-adds. The panel of b lies in the order in which it is read: put there by each block, or
ahead of all calls (`packed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

import taskc as tc
from taskc import DType, Machine, TensorType, f32, repeat, spatial
from taskc.kernels.few_rows import MOST, columns_of, few_rows
from taskc.kernels.padded_matmul import is_worth_copying, padded_matmul
from taskc.kernels.tiles_matmul import Tiling, tiles_matmul
from taskc.kernels.vector_matmul import has_vectors, vector_matmul

Extent = Any  # an int, or a tc.dim
Activation = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A tile is `rows` x `vectors` * lanes; a block has as many tiles as `tall` rows take."""

    rows: int
    vectors: int
    tall: int
    lanes: int

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes


# Rows of b in a panel; of those of longer sums, half as many are taken at a time.
_DEEPEST = 1 << 12

# A core finds so many pages of memory fast. Where the rows of b are in more of them, panels beside each other
# are filled from some rows before it goes on to the next, unless many rows of a make up for the search.
_PAGES, _PAGE, _SOME, _BESIDE, _FEW = 1280, 1 << 12, 512, 8, 1 << 10

# Tiles that leave registers for a row of b and an element of a, and how much of the peak they reach.
_TILES = {
    32: (
        *(((8, 3), 1.0), ((6, 4), 0.99), ((12, 2), 0.97), ((14, 2), 0.95)),
        *(((4, 4), 0.9), ((2, 8), 0.85), ((1, 8), 0.6), ((1, 4), 0.5)),
    ),
    16: (((4, 3), 1.0), ((6, 2), 1.0), ((3, 4), 0.95), ((2, 4), 0.85), ((1, 8), 0.6), ((1, 4), 0.5)),
}  # fmt: skip


def choose(m: Extent, n: Extent, k: Extent, machine: Machine, *, packed: bool) -> Schedule:
    """The tile that wastes least, and blocks that keep every thread busy and fit its cache."""
    most_rows = m if isinstance(m, int) else 1 << 20
    columns = n if isinstance(n, int) else 1 << 20

    def cost(tile: tuple[tuple[int, int], float]) -> float:
        (rows, vectors), efficiency = tile
        wide = vectors * machine.lanes
        return ceil(most_rows / rows) * rows * ceil(columns / wide) * wide / efficiency

    (rows, vectors), _ = min(_TILES[machine.registers], key=cost)
    panels = ceil(columns / (vectors * machine.lanes))
    blocks = 4 * machine.threads
    tiles = ceil(most_rows / rows)
    splits = min(tiles, ceil(blocks / max(1, panels)))
    if not isinstance(m, int):
        splits = max(splits, ceil(most_rows / (32 * rows)))
    return Schedule(rows, vectors, ceil(tiles / max(1, splits)) * rows or rows, machine.lanes)


def _is_scattered(m: Extent, n: Extent, k: Extent, dtype: DType) -> bool:
    """Whether a panel's rows of b are in more pages than are found fast, for so few rows of a."""
    if not all(isinstance(extent, int) for extent in (m, n, k)) or m > _FEW:
        return False
    return bool(k * min(n * dtype.nbytes, _PAGE) > _PAGES * _PAGE)


def packed_type(n: int, k: int, dtype: DType, schedule: Schedule) -> TensorType:
    """What a constant operand b is packed as: panels of columns, zeros behind the last."""
    panels = ceil(n / schedule.wide)
    layout = repeat(1, max(1, panels)) * repeat(max(1, k), schedule.wide)
    return dtype[k, panels * schedule.wide].laid(layout)


def matmul(
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    dtype: DType = f32,
    right: DType | None = None,
    total: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    packed: bool = False,
    bias: bool = False,
    activation: Activation | None = None,
    by: DType | None = None,
    schedule: Schedule | None = None,
    result: DType | None = None,
    machine: Machine | None = None,
    tiling: Tiling | None = None,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """A kernel: c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]).

    right        b's type, where it isn't a's: i8 beside u8
    total        the type that is summed in, and that c has; the operands' if not said
    transpose_a  a is given as [k, m]; transpose_b: b as [n, k]
    packed       b comes as `kernel.pack(b)` makes it
    bias         a third operand
    activation   a function of the sum, such as tc.gelu
    result       c's type, where it isn't `total`
    by           tf32: operands of f32 are rounded to that as they are multiplied, on a GPU
    machine      what it is built for, by its mappings: `tc.machine()`, where calls run, or
                 `tc.machine("sm_80")`. There long sums may be split; then it is a program
    schedule     how, on a processor; `tiling`: elsewhere
    """
    machine = machine or tc.machine()
    if not machine.is_processor:
        if packed:
            raise ValueError("this machine takes b as it is: pack it for processors")
        options: dict[str, Any] = {
            "machine": machine, "dtype": dtype, "right": right, "total": total, "result": result,
            "transpose_a": transpose_a, "transpose_b": transpose_b, "bias": bias,
            "activation": activation, "by": by,
        }  # fmt: skip
        if tiling is None and has_vectors(m, n):
            return vector_matmul(m, n, k, **options)
        is_copied = is_worth_copying(
            m, n, k, (dtype, right or dtype, total or dtype), machine,
            transpose_a=transpose_a, transpose_b=transpose_b,
        )  # fmt: skip
        make = padded_matmul if is_copied else tiles_matmul
        return make(m, n, k, tiling=tiling, **options)
    if by is not None:
        raise ValueError(f"a processor multiplies {dtype} as it is, not by {by}")
    if packed and transpose_b:
        raise ValueError("a packed operand has an order of its own: pack b.T")
    total = total or dtype
    into = result or total
    plan = schedule or choose(m, n, k, machine, packed=packed)
    rows, wide, tall = plan.rows, plan.wide, plan.tall
    own = repeat(rows, plan.vectors) * spatial(1, plan.lanes)
    # Of the last tile, if m is not known. Where b isn't packed, `few_rows` takes the smallest m.
    eighths = (0, 2, 3, 4, 5, 6, 8) if packed else (0, 4, 8)
    heights = sorted({rows * part // 8 for part in eighths})
    is_fixed = isinstance(m, int) or schedule is not None
    left = dtype[k, m] if transpose_a else dtype[m, k]
    right_type = right or dtype
    other = right_type[n, k] if transpose_b else right_type[k, n]
    if packed:
        other = packed_type(n, k, right_type, plan)

    @tc.function
    def operand(a, i, q):
        if transpose_a:
            return a[q, min(i, m - 1)].to(total)
        else:
            return a[min(i, m - 1), q].to(total)

    @tc.function
    def finished(value, offsets, j):
        if bias:
            value = value + offsets[j]
        if activation is None:
            return value.to(into)
        else:
            return activation(value).to(into)

    @tc.function
    def summed(a, panel, own, row, first):
        """A tile in registers; its columns begin at column `first` of the panel."""
        acc = tc.tile(total, own, 0)
        for q in range(k):
            for i, j in own:
                acc[i, j] += operand(a, row + i, q) * panel[q, first + j].to(total)
        return acc

    @tc.function
    def last(a, panel, sums, row, first):
        """The rows that are left, by a tile that has few more."""
        for less, height in tc.static(list(pairwise(heights))):
            if less < m - row and (m - row <= height or height == rows):
                part = repeat(height, plan.vectors) * spatial(1, plan.lanes)
                acc = summed(a, panel, part, row, first)
                for i, j in part:
                    sums[i, j] = acc[i, j]

    @tc.function
    def tiles(a, panel, offsets, c, row, col, first):
        """The tiles of a block."""
        for r in range(0, tall, rows):
            if row + r < m:
                if is_fixed:
                    sums = summed(a, panel, own, row + r, first)
                else:
                    sums = tc.shared(total[rows, wide])
                    last(a, panel, sums, row + r, first)
                for i, j in own:
                    if row + r + i < m and col + j < n:
                        c[row + r + i, col + j] = finished(sums[i, j], offsets, col + j)

    # A panel of more rows of b would not stay in a core's own cache.
    is_deep = not packed and not (isinstance(k, int) and k <= _DEEPEST)
    depth, beside = _DEEPEST // 2 if is_deep else k, 1
    if not packed and not transpose_b and _is_scattered(m, n, k, dtype):
        is_deep, depth = True, _SOME
        beside = max(1, min(_BESIDE, ceil(n / wide) // (2 * tc.machine().threads)))

    @tc.function
    def part(b, first, col):
        """Some rows of a panel of b, in the order in which they are read."""
        if transpose_b:
            return tc.load((depth, wide), lambda q, j: b[col + j, first + q], fill=0)
        else:
            return tc.load(b[first : first + depth, col : col + wide])

    @tc.function
    def deep(a, b, offsets, c, row, col):
        """Panels beside each other; their sums wait in memory for the next part of k."""
        sums = tc.shared(total[beside, tall, wide])
        for p in range(beside):
            for r in range(0, tall, rows):
                for i, j in own:
                    sums[p, r + i, j] = 0
        for first in range(0, k, depth):
            for p in range(beside):
                if col + p * wide < n:
                    panel = part(b, first, col + p * wide)
                    for r in range(0, tall, rows):
                        if row + r < m:
                            acc = tc.tile(total, own)
                            for i, j in own:
                                acc[i, j] = sums[p, r + i, j]
                            for q in range(min(depth, k - first)):
                                for i, j in own:
                                    value = panel[q, j].to(total)
                                    acc[i, j] += operand(a, row + r + i, first + q) * value
                            for i, j in own:
                                sums[p, r + i, j] = acc[i, j]
        for p in range(beside):
            for r in range(0, tall, rows):
                for i, j in own:
                    column = col + p * wide + j
                    if row + r + i < m and column < n:
                        c[row + r + i, column] = finished(sums[p, r + i, j], offsets, column)

    @tc.function
    def panel(a, b, offsets, c, row, col):
        if packed:
            tiles(a, b, offsets, c, row, col, col)
        elif is_deep:
            deep(a, b, offsets, c, row, col)
        else:
            whole = part(b, 0, col)
            tiles(a, whole, offsets, c, row, col, 0)

    is_few = schedule is None and is_fixed and m <= MOST and not packed
    columns = columns_of(m, n)
    if not is_fixed:
        columns = ceil(columns / wide) * wide
    few = few_rows(
        m, n, k, total,
        columns=columns, transpose_b=transpose_b, operand=operand, finished=finished,
    )  # fmt: skip

    @tc.function
    def product(a, b, offsets, c):
        if is_few:
            for col in tc.tiles(n, by=columns):
                few(a, b, offsets, c, col)
        elif is_fixed:
            for row, col in tc.tiles((m, n), by=(tall, beside * wide), order=(1, 0)):
                panel(a, b, offsets, c, row, col)
        else:
            for row, col in tc.tiles((m, n), by=(tall, columns), order=(1, 0)):
                if not packed and m <= MOST:
                    few(a, b, offsets, c, col)
                else:
                    for p in range(0, columns, wide):
                        if col + p < n:
                            panel(a, b, offsets, c, row, col + p)

    packs = {"b": (k, n)} if packed else None
    if bias:

        @tc.kernel(workers=plan.lanes, packs=packs)
        def matmul(a: left, b: other, offsets: total[n], c: tc.out[into[m, n]]):
            product(a, b, offsets, c)
    else:

        @tc.kernel(workers=plan.lanes, packs=packs)
        def matmul(a: left, b: other, c: tc.out[into[m, n]]):
            product(a, b, None, c)

    return matmul
