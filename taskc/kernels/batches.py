"""Products of many matrices, which belong together as NumPy broadcasts shapes.

A kernel counts the products, and the operands' batch axes are made of that number: where an operand has an
extent of 1, or no such axis, it is the same one for all. Where b is the same for all, the rows of all
products are counted as those of one: tiles go across them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, KernelDefinition, TensorType, f32, repeat, spatial
from taskc.kernels.matmul import Activation, Extent, Schedule, choose, packed_type
from taskc.kernels.squares import columns, quarters

Extents = Sequence[Extent]
_MOST = 3


def batch_matmul(
    batch: tuple[Extents, Extents],
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
    schedule: Schedule | None = None,
) -> KernelDefinition:
    """A kernel: c[..., m, n] = activation(a[..., m, k] @ b[..., k, n] + bias[n]).

    batch  what stands in front of the last two axes, of a and of b

    All else is as in `matmul`; a packed b is the same for all products.
    """
    if packed and (batch[1] or transpose_b):
        raise CompileError("a packed operand has an order of its own, and no batch axes")
    batches = _broadcast(*batch)
    is_joined = isinstance(m, int) and all(_is(n, 1) for n in batch[1])
    products, height = (1, prod(batches) * m) if is_joined else (prod(batches), m)
    total = total or dtype
    plan = schedule or choose(height, n, k, tc.machine(), packed=packed)
    rows, wide, tall = plan.rows, plan.wide, plan.tall
    lanes = plan.lanes
    own, line = (repeat(r, v) * spatial(1, lanes) for r, v in ((rows, plan.vectors), (lanes, 1)))
    left = TensorType(dtype, (*batch[0], *((k, m) if transpose_a else (m, k))))
    right = TensorType(dtype, (*batch[1], *((n, k) if transpose_b else (k, n))))
    result = TensorType(total, (*batches, m, n))
    if packed:
        right = packed_type(n, k, dtype, plan)
    of_a, of_b, of_c = (_element_of(axes, batches) for axes in (*batch, batches))

    @tc.function
    def place(number, i):
        """Which product a row belongs to, and which one of that product's it is."""
        return (i // m, i % m) if is_joined else (number, i)

    @tc.function
    def operand(a, number, i, q):
        owner, row = place(number, min(i, height - 1))
        if transpose_a:
            return a[of_a(owner, q, row)].to(total)
        else:
            return a[of_a(owner, row, q)].to(total)

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
                        owner, own_row = place(number, row + r + i)
                        value = finished(acc[i, j], offsets, col + j)
                        c[of_c(owner, own_row, col + j)] = value

    @tc.function
    def turned(b, number, col):
        """A panel of b, whose rows lie across it."""
        panel = tc.shared(dtype[ceil(k / lanes) * lanes, wide])
        for first in range(0, wide, lanes):
            for q in range(0, k, lanes):
                square = tc.shared(dtype[lanes, lanes])
                for j, p in line:
                    square[j, p] = (
                        b[of_b(number, col + first + j, q + p)]
                        if col + first + j < n and q + p < k
                        else 0
                    )
                part = quarters(square)
                for p1, p0, j1, j0 in columns(lanes):
                    panel[q + 4 * p1 + p0, first + 4 * j1 + j0] = part[p0, j1, p1, j0]
        return panel

    @tc.function
    def product(a, b, offsets, c):
        for number, row, col in tc.tiles(
            (products, height, n), by=(1, tall, wide), order=(0, 2, 1)
        ):
            if packed:
                tiles(a, b, offsets, c, number, row, col, col)
            elif transpose_b:
                panel = turned(b, number, col)
                tiles(a, panel, offsets, c, number, row, col, 0)
            else:
                panel = tc.load((k, wide), lambda q, j: b[of_b(number, q, col + j)], fill=0)
                tiles(a, panel, offsets, c, number, row, col, 0)

    packs = {"b": (k, n)} if packed else None
    if bias:

        @tc.kernel(workers=lanes, packs=packs)
        def batch_matmul(a: left, b: right, offsets: total[n], c: tc.out[result]):
            product(a, b, offsets, c)
    else:

        @tc.kernel(workers=lanes, packs=packs)
        def batch_matmul(a: left, b: right, c: tc.out[result]):
            product(a, b, None, c)

    return batch_matmul


def _broadcast(a: Extents, b: Extents) -> tuple[Extent, ...]:
    """The batch axes of the result."""
    rank = max(len(a), len(b))
    if rank > _MOST:
        raise CompileError(
            f"products have at most {_MOST} batch axes, and these {rank}",
            hint="neighbours that both operands have, or that one has, are one axis as well",
        )
    whole = []
    for one, other in zip(_padded(a, rank), _padded(b, rank), strict=True):
        if not (_is(one, 1) or _is(other, 1) or one is other or one == other):
            raise CompileError(
                f"the batch axes {tuple(a)} and {tuple(b)} can't be broadcast",
                hint=f"an axis has the extents {one}, {other}",
            )
        whole.append(other if _is(one, 1) else one)
    return tuple(whole)


def _element_of(own: Extents, whole: Extents) -> Callable[..., Any]:
    """All indices of a matrix's element: a function of the product's number, and of the last two."""
    once = [_is(extent, 1) for extent in _padded(own, _MOST)]
    # Of an empty axis no element is asked for.
    first, middle, last = [1 if _is(extent, 0) else extent for extent in _padded(whole, _MOST)]
    inner, rank = prod((middle, last)), len(own) + 2
    is_alone = _is(prod((first, middle)), 1)

    @tc.function
    def element(number, i, j):
        return (
            0 if once[0] else number // inner,
            0 if once[1] else number // last if _is(first, 1) else number // last % middle,
            0 if once[2] else number if is_alone else number % last,
            i,
            j,
        )[-rank:]

    return element


def _is(extent: Extent, number: int) -> bool:
    return isinstance(extent, int) and extent == number


def _padded(extents: Extents, rank: int) -> tuple[Extent, ...]:
    return (1,) * (rank - len(extents)) + tuple(extents)
