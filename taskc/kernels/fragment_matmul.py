"""Matrix products by the matrix instructions of GPUs.

    c[m, n] = activation(a[m, k] @ b[k, n] + bias[n])

A block has a tile of c in registers, and goes through k with the tiles of a and b in shared memory ahead of
it. Which instruction multiplies is told by the mapping of the tile: it ends in that one's fragment. So one
text serves all of them; a schedule is a mapping, a depth and how the loads travel.
"""

from __future__ import annotations

from dataclasses import dataclass

import taskc as tc
from taskc import DType, Mapping, bf16, f32, repeat, spatial
from taskc.kernels.matmul import Activation, Extent

# 16 rows by 8 columns, of which each worker of a warp has two pairs: what mma.sync adds to.
PAIRS = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)


@dataclass(frozen=True, slots=True)
class Schedule:
    """own         who has which element of a block's tile
    depth       elements of k in a step
    stages      steps whose operands have room in shared memory
    specialize  a producer loads; else all workers do
    persistent  blocks run over several tiles each
    group       rows of tiles that blocks go down before the next column
    cluster     neighbouring blocks that load for each other what is the same for them; its extents have to
                divide the numbers of tiles
    """

    own: Mapping
    depth: int
    stages: int
    specialize: bool = False
    persistent: bool = False
    group: int = 8
    cluster: tuple[int, int] = (1, 1)


def warpgroups(count: int = 2, columns: int = 256, *, depth: int = 64, stages: int = 4) -> Schedule:
    """Of 64 rows each, one below the other, multiplying beside the loads (sm_90a)."""
    own = spatial(count, 1) * spatial(4, 1) * repeat(1, columns // 8) * PAIRS
    return Schedule(own, depth, stages, specialize=True, persistent=True)


def warps(
    shape: tuple[int, int] = (2, 4),
    tiles: tuple[int, int] = (4, 4),
    *,
    depth: int = 32,
    stages: int = 4,
) -> Schedule:
    """Rows and columns of warps, which have so many fragments each (sm_80 and up)."""
    return Schedule(spatial(*shape) * repeat(*tiles) * PAIRS, depth, stages)


def fragment_matmul(
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    dtype: DType = bf16,
    total: DType = f32,
    result: DType | None = None,
    transpose_b: bool = False,
    bias: bool = False,
    activation: Activation | None = None,
    schedule: Schedule | None = None,
) -> tc.KernelDefinition:
    """A kernel: c[m, n] = activation(a[m, k] @ b[k, n] + bias[n]).

    total        the type that is summed in
    result       the type of c; the operands' if not said
    transpose_b  b is given as [n, k]
    bias         a third operand, of the type `total`
    activation   a function of the sum, such as tc.gelu
    """
    plan = schedule or warps()
    own, depth, group = plan.own, plan.depth, plan.group
    cluster = plan.cluster
    stages, is_persistent, specialize = plan.stages, plan.persistent, plan.specialize
    tall, wide = own.shape
    result = result or dtype
    right = dtype[n, k] if transpose_b else dtype[k, n]

    @tc.function
    def step(acc, a, b, row, col, p):
        left = tc.load(a[row : row + tall, p : p + depth])
        if transpose_b:
            lines = tc.load(b[col : col + wide, p : p + depth])
            tc.mma(acc, left, lines.T)
        else:
            panel = tc.load(b[p : p + depth, col : col + wide])
            tc.mma(acc, left, panel)

    @tc.function
    def finished(value, offsets, j):
        if bias:
            value = value + offsets[min(j, n - 1)]
        if activation is None:
            return value.to(result)
        else:
            return activation(value).to(result)

    @tc.function
    def product(a, b, offsets, c):
        for row, col in tc.tiles(
            (m, n),
            by=(tall, wide),
            order=("grouped", group),
            persistent=is_persistent,
            cluster=cluster,
        ):
            acc = tc.tile(total, own, 0)
            for p in tc.pipeline(k, by=depth, stages=stages, specialize=specialize):
                step(acc, a, b, row, col, p)
            done = tc.tile(result, own)
            for i, j in own:
                done[i, j] = finished(acc[i, j], offsets, col + j)
            tc.store(c[row : row + tall, col : col + wide], done)

    if bias:

        @tc.kernel(workers=own.workers)
        def kernel(a: dtype[m, k], b: right, offsets: total[n], c: tc.out[result[m, n]]):
            product(a, b, offsets, c)
    else:

        @tc.kernel(workers=own.workers)
        def kernel(a: dtype[m, k], b: right, c: tc.out[result[m, n]]):
            product(a, b, None, c)

    return kernel
