"""Matrix products of 8- and 16-bit numbers, by the instruction that the machine has for them.

    c[m, n] = activation(a[m, k] @ b[k, n] + bias[n])

A block is a panel of columns, as in `matmul`; a tile of its rows is one `tc.mma`. The panel of b lies in
packs: of as many elements of k as the instruction takes at once, for one column after the other. Each block
puts it so, or it comes so (`packed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import taskc as tc
from taskc import DType, Machine, Mapping, TensorType, bf16, f32, i32, repeat, spatial, u8
from taskc.ir.target import DotInstruction, TileInstruction
from taskc.kernels.matmul import Activation, Extent

Types = tuple[DType, DType, DType]


@dataclass(frozen=True, slots=True)
class Plan:
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


# Tiles of vectors that leave registers for a pack of b in each, one of a, and the sums of signed products;
# and how much of the peak they reach.
_VECTORS = {
    32: (
        *(((12, 2), 1.0), ((8, 3), 0.97), ((8, 2), 0.95), ((6, 4), 0.9), ((4, 4), 0.85)),
        *(((4, 2), 0.7), ((2, 4), 0.7), ((1, 8), 0.6), ((1, 4), 0.5)),
    ),
    16: (((4, 2), 1.0), ((3, 2), 0.95), ((2, 3), 0.85), ((1, 4), 0.6)),
}  # fmt: skip
# Fragments of tile registers: of their loads and products, how many are products, times their advantage.
_FRAGMENTS = (((2, 2), 7.0), ((1, 3), 6.0), ((3, 1), 6.0), ((1, 1), 4.5))


def choose(m: Extent, n: int, types: Types, machine: Machine) -> Plan:
    """The tile that wastes least, and blocks that keep every thread busy."""
    most_rows = m if isinstance(m, int) else 1 << 20

    def cost(candidate: tuple[Mapping, float, int, int]) -> float:
        (rows, wide), speed = candidate[0].shape, candidate[1]
        return ceil(most_rows / rows) * rows * ceil(n / wide) * wide / speed

    own, _, pack, step = min(_candidates(types, machine), key=cost)
    rows, wide = own.shape
    panels, tiles = max(1, ceil(n / wide)), max(1, ceil(most_rows / rows))
    splits = min(tiles, ceil(4 * machine.threads / panels))
    if not isinstance(m, int):
        splits = max(splits, ceil(most_rows / (32 * rows)))
    return Plan(own, ceil(tiles / splits) * rows, pack, step)


def _candidates(types: Types, machine: Machine) -> Iterator[tuple[Mapping, float, int, int]]:
    """A tile's mapping, its speed, and the pack and the step of its instruction."""
    rows = machine.instructions(*types)
    for row in (row for row in rows if isinstance(row, TileInstruction)):
        for sizes, speed in _FRAGMENTS:
            yield repeat(*sizes) * row.accumulator_fragment, speed, row.pack, row.shape[2]
    pack = next((row.pack for row in rows if isinstance(row, DotInstruction)), 1)
    for sizes, speed in _VECTORS[machine.registers]:
        yield repeat(*sizes) * spatial(1, machine.lanes), speed, pack, pack


def types_of(left: DType, right: DType | None, total: DType | None) -> Types:
    """Those of both operands and of the sum, with what is usual for those that aren't said."""
    usual = f32 if left.is_float else i32
    return left, right or (tc.i8 if left is u8 else left), total or usual


def packed_type(n: int, k: int, dtype: DType, plan: Plan) -> TensorType:
    """What a constant operand b is packed as: packs of columns in panels, zeros behind its end."""
    # A layout has room for one pack of one panel, where there is none.
    depth, panels = max(1, ceil(k / plan.step)) * plan.step, max(1, ceil(n / plan.wide))
    layout = repeat(1, panels) * repeat(depth // plan.pack, plan.wide) * repeat(plan.pack, 1)
    return dtype[depth, panels * plan.wide].laid(layout)


def product(
    m: Extent,
    n: int,
    k: int,
    *,
    dtype: DType = bf16,
    right: DType | None = None,
    total: DType | None = None,
    result: DType | None = None,
    packed: bool = False,
    bias: bool = False,
    activation: Activation | None = None,
    plan: Plan | None = None,
) -> tc.KernelDefinition:
    """A kernel: c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]).

    dtype       a's type: bf16, i8, u8, or any other, for which there may be no instruction
    right       b's: a's, or i8 where that is u8
    total       what is summed in, and the bias's type: f32, or i32 of integers
    result      c's type, to which `activation(…)` is converted in the end; `total` if not said
    packed      b comes as `kernel.pack(b)` makes it
    bias        a third operand
    activation  a function of the sum, such as tc.gelu
    """
    left_type, right_type, sum_type = types = types_of(dtype, right, total)
    plan = plan or choose(m, n, types, tc.machine())
    own, tall, (rows, wide) = plan.own, plan.tall, plan.own.shape
    depth = ceil(k / plan.step) * plan.step
    into = result or sum_type
    columns = right_type[k, n]
    if packed:
        columns = packed_type(n, k, right_type, plan)

    @tc.function
    def finished(value, offsets, j):
        if bias:
            value = value + offsets[j]
        if activation is not None:
            value = activation(value)
        return value.to(into)

    @tc.function
    def tiles(a, panel, offsets, c, row, col, first):
        """The tiles of a block; its columns begin at column `first` of the panel."""
        for r in range(0, tall, rows):
            if row + r < m:
                acc = tc.tile(sum_type, own, 0)
                if depth == k and row + r + rows <= m:
                    tc.mma(
                        acc,
                        a[row + r : row + r + rows, 0:k],
                        panel[0:depth, first : first + wide],
                    )
                else:
                    edge = tc.load((rows, depth), lambda i, q: a[row + r + i, q], fill=0)
                    tc.mma(acc, edge, panel[0:depth, first : first + wide])
                for i, j in own:
                    if row + r + i < m and col + j < n:
                        c[row + r + i, col + j] = finished(acc[i, j], offsets, col + j)

    @tc.function
    def blocks(a, b, offsets, c):
        for row, col in tc.tiles((m, n), by=(tall, wide), order=(1, 0)):
            if packed:
                tiles(a, b, offsets, c, row, col, col)
            else:
                panel = tc.load((depth, wide), lambda q, j: b[q, col + j], fill=0)
                tiles(a, panel, offsets, c, row, col, 0)

    packs = {"b": (k, n)} if packed else None
    if bias:

        @tc.kernel(workers=own.workers, packs=packs)
        def product(a: left_type[m, k], b: columns, offsets: sum_type[n], c: tc.out[into[m, n]]):
            blocks(a, b, offsets, c)
    else:

        @tc.kernel(workers=own.workers, packs=packs)
        def product(a: left_type[m, k], b: columns, c: tc.out[into[m, n]]):
            blocks(a, b, None, c)

    return product
