"""Products of a few vectors and a matrix on GPUs: what counts is that the matrix is read once, and fast.

The vectors are rows of a, the matrix is b, and a column of it goes into each element of c. Or the vectors
are columns of b and the matrix is a, whose rows are called columns here.

    down   where neighbours in memory are neighbouring columns, workers beside each other have them, of
           steps of k of their own
    along  where they are of one column, a warp walks along it

Either way a worker reads 16 bytes at a time, has several such accesses under way before it multiplies, and
what workers have found is folded in the end. Where the blocks of all columns are too few to keep the memory
busy, k is cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import taskc as tc
from taskc import DType, Machine, Mapping, auto_map, repeat, replicate, spatial
from taskc.kernels.owners import WORKERS, power, width
from taskc.kernels.split_matmul import in_parts

Extent = Any  # an int, or a tc.dim

MOST = 4  # vectors: with more of them arithmetic takes longer than memory
_LINE = 128  # bytes by which memory is read
_UNDER_WAY, _MOST_ACCESSES = 128, 32  # of a worker: bytes, and accesses where they are narrow
_BLOCKS = 4  # to a multiprocessor, of parts of k
_LEAST_STEPS = 2  # of a part


def has_vectors(m: Extent, n: Extent) -> bool:
    """Whether one of the operands is so few vectors."""
    return any(isinstance(extent, int) and 1 <= extent <= MOST for extent in (m, n))


@dataclass(frozen=True, slots=True)
class _Owners:
    """Who has what of a block's step.

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


def _accesses(wide: int, dtype: DType) -> int:
    return min(_MOST_ACCESSES, _UNDER_WAY // (wide * dtype.nbytes))


def _down(count: int, length: Extent, k: Extent, dtype: DType) -> _Owners:
    wide = width(length, dtype)
    across = _LINE // (wide * dtype.nbytes)
    if isinstance(length, int):
        across = min(across, power(ceil(length / wide)))
    down, deep = WORKERS // across, _accesses(wide, dtype)
    if isinstance(k, int):
        deep = min(deep, power(ceil(k / down)))
    vectors, side = repeat(count, 1, 1), spatial(1, across, down, order=(0, 2, 1))
    return _Owners(
        spatial(across, down, order=(1, 0)) * repeat(wide, deep, order=(1, 0)),
        repeat(count, 1) * spatial(1, down) * replicate(across) * repeat(1, deep),
        vectors * side * repeat(1, wide, deep, order=(0, 2, 1)),
        vectors * side * repeat(1, wide, 1),
        run=deep,
    )


def _along(count: int, length: Extent, k: Extent, dtype: DType, machine: Machine) -> _Owners:
    wide = width(k, dtype)
    lanes = min(machine.lanes, power(ceil(k / wide))) if isinstance(k, int) else machine.lanes
    rows = WORKERS // lanes
    # Two columns of a worker take the vectors' elements together, if that leaves blocks enough.
    tall = 1 if isinstance(length, int) and _are_few(ceil(length / (2 * rows)), machine) else 2
    trips = _accesses(wide, dtype) // tall
    if isinstance(k, int):
        trips = min(trips, power(ceil(k / (lanes * wide))))
    walk = spatial(1, lanes) * repeat(1, wide)
    block, walkers = spatial(1, rows, 1), spatial(1, 1, lanes)
    return _Owners(
        spatial(rows, 1) * repeat(tall, trips) * walk,
        replicate(rows) * repeat(count, trips) * walk,
        block * repeat(count, tall, trips) * walkers * repeat(1, 1, wide),
        block * repeat(count, tall, 1) * walkers,
        run=wide,
    )


def _are_few(blocks: int, machine: Machine) -> bool:
    """Whether so many leave multiprocessors without work."""
    return blocks < 3 * machine.threads // 2


def _parts(length: Extent, k: Extent, own: _Owners, machine: Machine) -> int:
    if not isinstance(length, int) or not isinstance(k, int):
        return 1
    columns, steps = own.matrix.shape
    blocks = max(1, ceil(length / columns))
    if not _are_few(blocks, machine):
        return 1
    return max(1, min(_BLOCKS * machine.threads // blocks, k // (_LEAST_STEPS * steps)))


def vector_matmul(
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
    activation: Callable[[Any], Any] | None = None,
    by: DType | None = None,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]), as `matmul` has it; m or n is small."""
    total = total or dtype
    into, right_type = result or total, right or dtype
    left = dtype[k, m] if transpose_a else dtype[m, k]
    other = right_type[n, k] if transpose_b else right_type[k, n]
    are_rows = isinstance(m, int) and 1 <= m <= MOST
    count, length = (m, n) if are_rows else (n, m)
    kind, few = (right_type, dtype) if are_rows else (dtype, right_type)
    if transpose_b if are_rows else not transpose_a:
        own = _along(count, length, k, kind, machine)
    else:
        own = _down(count, length, k, kind)
    columns, steps = own.matrix.shape
    walkers = own.sums.shape[2]
    lines = auto_map((count, columns), workers=WORKERS)

    @tc.function
    def place(i, j):
        """Of what vector i and column j give, in c."""
        return (i, j) if are_rows else (j, i)

    @tc.function
    def place_of_part(part, i, j):
        return (part, i, j) if are_rows else (part, j, i)

    @tc.function
    def left_at(a, i, q):
        return a[q, i] if transpose_a else a[i, q]

    @tc.function
    def right_at(b, q, j):
        return b[j, q] if transpose_b else b[q, j]

    @tc.function
    def vector_at(a, b, i, q):
        return left_at(a, i, q) if are_rows else right_at(b, q, i)

    @tc.function
    def matrix_at(a, b, q, j):
        return right_at(b, q, j) if are_rows else left_at(a, j, q)

    @tc.function
    def moved(value, offsets, j):
        return value + offsets[j] if bias else value

    @tc.function
    def finished(value, offsets, j):
        if activation is None:
            return moved(value, offsets, j).to(into)
        else:
            return activation(moved(value, offsets, j)).to(into)

    @tc.function
    def multiplied(x):
        return x.to(total) if by is None else x.to(by).to(total)

    @tc.function
    def summed(a, b, col, first, last):
        """The sums of a block's columns over k from `first` to `last`, in shared memory."""
        sums = tc.tile(total, own.sums, 0)
        for step in range(first, last, steps):
            matrix, vectors = tc.tile(kind, own.matrix, 0), tc.tile(few, own.vectors, 0)
            for j, q in own.matrix:
                if step + q < last and col + j < length:
                    matrix[j, q] = matrix_at(a, b, step + q, col + j)
            for i, q in own.vectors:
                if step + q < last:
                    vectors[i, q] = vector_at(a, b, i, step + q)
            for i, j, q in own.products:
                x, y = multiplied(vectors[i, q]), multiplied(matrix[j, q])
                sums[i, j, q // own.run % walkers] += x * y
        folded = tc.reduce(sums, 2, "+")
        made = tc.shared(total[count, columns])
        for i, j in folded.mapping:
            made[i, j] = folded[i, j]
        return made

    parts = _parts(length, k, own, machine)
    if parts > 1:
        per_part = ceil(k / (parts * steps)) * steps
        sums = total[parts, m, n]

        @tc.kernel(workers=WORKERS)
        def partial(a: left, b: other, sums: tc.out[sums]):
            for part, col in tc.tiles((parts, length), by=(1, columns)):
                made = summed(a, b, col, part * per_part, min((part + 1) * per_part, k))
                for i, j in lines:
                    if col + j < length:
                        sums[place_of_part(part, i, col + j)] = made[i, j]

        types = left, other, into
        return in_parts(partial, sums, types, finished, bias=bias, machine=machine)

    @tc.function
    def whole(a, b, offsets, c):
        for col in tc.tiles(length, by=columns):
            made = summed(a, b, col, 0, k)
            for i, j in lines:
                if col + j < length:
                    at = place(i, col + j)
                    c[at] = finished(made[i, j], offsets, col + j if are_rows else i)

    if bias:

        @tc.kernel(workers=WORKERS)
        def matmul(a: left, b: other, offsets: total[n], c: tc.out[into[m, n]]):
            whole(a, b, offsets, c)
    else:

        @tc.kernel(workers=WORKERS)
        def matmul(a: left, b: other, c: tc.out[into[m, n]]):
            whole(a, b, None, c)

    return matmul
