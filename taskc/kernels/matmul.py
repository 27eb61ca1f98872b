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
from math import ceil, prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, Machine, TensorType, f32, repeat, spatial
from taskc.kernels.batches import Extents, broadcast, element_of, is_one
from taskc.kernels.few_rows import MOST, few_rows

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
    splits = min(tiles, ceil(blocks / panels))
    if not isinstance(m, int):
        splits = max(splits, ceil(most_rows / (32 * rows)))
    return Schedule(rows, vectors, ceil(tiles / max(1, splits)) * rows, machine.lanes)


def packed_type(
    n: int, k: int, *, dtype: DType = f32, schedule: Schedule | None = None, m: Extent = 1 << 20
) -> TensorType:
    """What a constant operand b is packed as: panels of columns, zeros behind the last."""
    wide = (schedule or choose(m, n, k, tc.machine(), packed=True)).wide
    panels = ceil(n / wide)
    return dtype[k, panels * wide].laid(repeat(1, panels) * repeat(k, wide))


def pack(b: Any, type: TensorType) -> tc.Packed:
    """A constant operand, as `packed_type` says."""
    import numpy as np

    n = b.shape[1]
    padded = np.zeros(type.shape, b.dtype)
    padded[:, :n] = b
    return tc.pack(padded, type)


def matmul(
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    dtype: DType = f32,
    total: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    packed: bool = False,
    bias: bool = False,
    activation: Activation | None = None,
    batch: tuple[Extents, Extents] = ((), ()),
    schedule: Schedule | None = None,
) -> tc.KernelDefinition:
    """A kernel: c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]).

    total        the type that is summed in, and that c has; the operands' if not said
    transpose_a  a is given as [k, m]; transpose_b: b as [n, k]
    packed       b comes as `pack(b, packed_type(n, k, ...))`, with the same schedule and types
    bias         a third operand
    activation   a function of the sum, such as tc.gelu
    batch        further axes in front of a's and of b's, which broadcast to those of c
    """
    if packed and transpose_b:
        raise ValueError("a packed operand has an order of its own: pack b.T")
    total = total or dtype
    if packed and batch[1]:
        raise CompileError("a packed operand is the same for all products: it has no batch axes")
    batches = broadcast(*batch)
    # Where all products have b in common, they are one with the rows of all.
    is_joined = isinstance(m, int) and all(map(is_one, batch[1]))
    height, products = (prod(batches) * m, 1) if is_joined else (m, prod(batches))
    plan = schedule or choose(height, n, k, tc.machine(), packed=packed)
    rows, wide, tall = plan.rows, plan.wide, plan.tall
    own = repeat(rows, plan.vectors) * spatial(1, plan.lanes)
    left = TensorType(dtype, (*batch[0], *((k, m) if transpose_a else (m, k))))
    right = TensorType(dtype, (*batch[1], *((n, k) if transpose_b else (k, n))))
    result = TensorType(total, (*batches, m, n))
    if packed:
        right = packed_type(n, k, dtype=dtype, schedule=plan)
    of_a, of_b, of_c = (element_of(axes, batches) for axes in (*batch, batches))

    @tc.function
    def place(number, i):
        """Which product a row belongs to, and which one of that product's it is."""
        return (i // m, i % m) if is_joined else (number, i)

    @tc.function
    def operand(a, number, i, q):
        own_number, row = place(number, min(i, height - 1))
        if transpose_a:
            return a[of_a(own_number, q, row)].to(total)
        else:
            return a[of_a(own_number, row, q)].to(total)

    @tc.function
    def finished(value, offsets, j):
        if bias:
            value = value + offsets[j]
        if activation is None:
            return value
        else:
            return activation(value)

    @tc.function
    def tiles(a, panel, offsets, c, number, row, col, first):
        """The tiles of a block; column j of it is column first + j of the panel."""
        for r in range(0, tall, rows):
            if row + r < height:
                acc = tc.tile(total, own, 0)
                for q in range(k):
                    for i, j in own:
                        factor = operand(a, number, row + r + i, q)
                        acc[i, j] += factor * panel[q, first + j].to(total)
                for i, j in own:
                    if row + r + i < height and col + j < n:
                        own_number, own_row = place(number, row + r + i)
                        c[of_c(own_number, own_row, col + j)] = finished(
                            acc[i, j], offsets, col + j
                        )

    @tc.function
    def panels(a, b, offsets, c):
        for number, row, col in tc.tiles(
            (products, height, n), by=(1, tall, wide), order=(0, 2, 1)
        ):
            if packed:
                tiles(a, b, offsets, c, number, row, col, col)
            elif transpose_b:
                panel = tc.load((k, wide), lambda q, j: b[of_b(number, col + j, q)], fill=0)
                tiles(a, panel, offsets, c, number, row, col, 0)
            else:
                panel = tc.load((k, wide), lambda q, j: b[of_b(number, q, col + j)], fill=0)
                tiles(a, panel, offsets, c, number, row, col, 0)

    is_few = isinstance(m, int) and m <= MOST and not batches
    if is_few and not packed and schedule is None:
        product = few_rows(
            m, n, k, total, transpose_b=transpose_b, operand=operand, finished=finished
        )
    else:
        product = panels

    if bias:

        @tc.kernel(workers=plan.lanes)
        def kernel(a: left, b: right, offsets: total[n], c: tc.out[result]):
            product(a, b, offsets, c)
    else:

        @tc.kernel(workers=plan.lanes)
        def kernel(a: left, b: right, c: tc.out[result]):
            product(a, b, None, c)

    return kernel
