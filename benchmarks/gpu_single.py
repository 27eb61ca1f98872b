"""Kernels of one instruction each, from tables: TMA boxes, operands of wgmma, moves of matrices, clusters.

Inputs are numbers that tell where an element came from, and results are exact: what is wrong is a permutation, zeros,
or somebody else's element, and gpu_failures.py says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import taskc as tc
from taskc import DType, bf16, f8e4m3, f16, f32, i8, i32, repeat, spatial, tf32

Build = Callable[..., Any]


@dataclass(frozen=True)
class Single:
    """name       of the kernel; the first word is the group that its rung is named after
    build      the kernel for a machine, and a size that nothing depends on
    reference  what it computes, of float64 arrays
    """

    name: str
    build: Build
    reference: Callable[..., Any]


def numbered(kernel: Any) -> list[Any]:
    """Inputs whose elements tell them apart, as far as their types do; each input has another step."""
    import numpy as np

    from taskc.ir.arithmetic import convert
    from taskc.ir.signature import inputs_of
    from taskc.ir.types import i64

    arrays = []
    for number, item in enumerate(inputs_of(kernel.ir.parameters)):
        shape = tuple([int(extent) for extent in item.argument_shape])
        most = 127 if item.dtype is i8 else 16 if item.dtype.nbytes == 1 else 251
        places = np.arange(np.prod(shape), dtype=np.int64) * (2 * number + 1) % most
        arrays.append(np.asarray(convert(places.reshape(shape), i64, item.dtype)))
    return arrays


# --- bulk copies -----------------------------------------------------------------------------

# Elements, box, swizzle: each width of a swizzle, lines that fill it and lines that don't, the tallest box.
BOXES: tuple[tuple[DType, int, int, int], ...] = (
    (f32, 64, 32, 128), (f32, 64, 16, 64), (f32, 64, 8, 32), (f32, 64, 12, 0), (bf16, 256, 64, 128),
    (i8, 32, 128, 128),
)  # fmt: skip
TENSOR = 150, 112  # no multiple of a box in either direction, but for rows of 16 bytes


def bulk(
    dtype: DType, tall: int, wide: int, swizzle: int, is_store: bool, machine: Any, *_: Any
) -> Any:
    """y = x, box by box, over the edges: one way by TMA, the other by ordinary loads and stores."""
    m, n = TENSOR
    workers, size = 128, tall * wide * dtype.nbytes
    own = repeat(tall, 1) * spatial(1, workers)

    @tc.cuda.kernel(workers=workers, target="sm_90a")
    def loaded(x: dtype[m, n], y: tc.out[dtype[m, n]]):  # type: ignore[valid-type]
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            near = tc.shared(dtype[tall, wide], swizzle=swizzle)
            full = tc.cuda.barriers(1)
            w = tc.worker()
            if w == 0:
                tc.cuda.mbarrier_init(full[0], 1)
            tc.sync()
            if w == 0:
                tc.cuda.mbarrier_expect(full[0], size)
                tc.cuda.tma_load(near[0, 0], x[row, col], full[0], tall, wide)
            tc.cuda.mbarrier_wait(full[0], 0)
            for i, j in own:
                if j < wide and row + i < m and col + j < n:
                    y[row + i, col + j] = near[i, j]

    @tc.cuda.kernel(workers=workers, target="sm_90a")
    def stored(x: dtype[m, n], y: tc.out[dtype[m, n]]):  # type: ignore[valid-type]
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            far = tc.shared(dtype[tall, wide], swizzle=swizzle)
            for i, j in own:
                if j < wide:
                    far[i, j] = dtype(0)
                    if row + i < m and col + j < n:
                        far[i, j] = x[row + i, col + j]
            tc.cuda.fence_proxy_async()
            tc.sync()
            if tc.worker() == 0:
                tc.cuda.tma_store(y[row, col], far[0, 0], tall, wide)
                tc.cuda.tma_commit()
                tc.cuda.tma_wait(0)

    return stored if is_store else loaded


# --- wgmma -----------------------------------------------------------------------------------

# Operands and sum; columns; k; bytes of a swizzle; along which dimension lines lie: k, or rows and columns.
DESCRIPTORS: tuple[tuple[DType, DType, int, int, int, str], ...] = (
    (bf16, f32, 64, 64, 128, "k"), (f16, f32, 24, 32, 64, "k"), (bf16, f32, 256, 16, 32, "k"),
    (tf32, f32, 16, 32, 128, "k"), (i8, i32, 48, 128, 128, "k"), (f8e4m3, f32, 8, 64, 64, "k"),
    (bf16, f32, 64, 64, 128, "mn"), (f16, f32, 32, 32, 64, "mn"),
)  # fmt: skip


def _fragment(n: int) -> Any:
    return spatial(4, 1).repeat(1, n // 8).repeat(2, 1).spatial(8, 4).repeat(1, 2)


def wgmma(dtype: DType, total: DType, n: int, k: int, width: int, machine: Any, *_: Any) -> Any:
    """c = a @ b.T of one warpgroup. `a` is one-hot, so a row of c is a row of b."""
    fragment = _fragment(n)

    @tc.cuda.kernel(workers=128, target="sm_90a")
    def along_k(a: dtype[64, k], b: dtype[n, k], c: tc.out[total[64, n]]):  # type: ignore[valid-type]
        sa = tc.shared(dtype[64, k], swizzle=width)
        sb = tc.shared(dtype[n, k], swizzle=width)
        acc = tc.tile(total, fragment)
        for i, j in repeat(64, -(-k // 128)).spatial(1, 128).within(64, k):
            sa[i, j] = a[i, j]
        for i, j in repeat(n, -(-k // 128)).spatial(1, 128).within(n, k):
            sb[i, j] = b[i, j]
        tc.cuda.fence_proxy_async()
        tc.sync()
        tc.cuda.wgmma_fence()
        tc.cuda.wgmma(acc, sa, sb.T, accumulate=False)
        tc.cuda.wgmma_commit()
        tc.cuda.wgmma_wait(0)
        for i, j in fragment:
            c[i, j] = acc[i, j]

    return along_k


def wgmma_across(
    dtype: DType, total: DType, n: int, k: int, width: int, machine: Any, *_: Any
) -> Any:
    """The same with lines of both operands along rows and columns, which only 16-bit types have."""
    fragment = _fragment(n)
    own = width // dtype.nbytes
    left = repeat(1, 64 // own) * repeat(k, own)
    right = repeat(1, n // own) * repeat(k, own)

    @tc.cuda.kernel(workers=128, target="sm_90a")
    def along_mn(a: dtype[64, k], b: dtype[n, k], c: tc.out[total[64, n]]):  # type: ignore[valid-type]
        sa = tc.shared(dtype[k, 64].laid(left), swizzle=width)
        sb = tc.shared(dtype[k, n].laid(right), swizzle=width)
        acc = tc.tile(total, fragment)
        for i, j in repeat(k, 1).spatial(1, 128).within(k, 64):
            sa[i, j] = a[j, i]
        for i, j in repeat(k, 1).spatial(1, 128).within(k, n):
            sb[i, j] = b[j, i]
        tc.cuda.fence_proxy_async()
        tc.sync()
        tc.cuda.wgmma_fence()
        tc.cuda.wgmma(acc, sa.T, sb, accumulate=False)
        tc.cuda.wgmma_commit()
        tc.cuda.wgmma_wait(0)
        for i, j in fragment:
            c[i, j] = acc[i, j]

    return along_mn


def one_hot(kernel: Any) -> list[Any]:
    """Row i of the left operand has a one at 3i mod k, so that each row of the result is one row of the right one."""
    import numpy as np

    a, b = numbered(kernel)
    a = np.zeros_like(a)
    rows = np.arange(len(a))
    a[rows, 3 * rows % a.shape[1]] = 1
    return [a, b]


# --- moves of matrices -----------------------------------------------------------------------

MOVES = tuple((way, turned) for way in ("ldmatrix", "stmatrix") for turned in (False, True))


def moved(way: str, turned: bool, machine: Any, *_: Any) -> Any:
    """c = x through shared memory: four matrices of eight lines at once, by which registers have rows or columns."""

    @tc.cuda.kernel(workers=32, target="sm_90a")
    def load(x: f16[16, 16], c: tc.out[f16[16, 16]]):
        near = tc.shared(f16[16, 16])
        held = tc.local(f16[8])
        w = tc.worker()
        for i, j in repeat(8, 1).spatial(2, 16):
            near[i, j] = x[i, j]
        tc.sync()
        if tc.static(turned):
            tc.cuda.ldmatrix_x4_trans(held[0], near[w % 16, w // 16 * 8])
        else:
            tc.cuda.ldmatrix_x4(held[0], near[w % 16, w // 16 * 8])
        for q in tc.static(range(4)):
            for e in tc.static(range(2)):
                row, col = w // 4, w % 4 * 2 + e
                if tc.static(turned):
                    c[q % 2 * 8 + col, q // 2 * 8 + row] = held[2 * q + e]
                else:
                    c[q % 2 * 8 + row, q // 2 * 8 + col] = held[2 * q + e]

    @tc.cuda.kernel(workers=32, target="sm_90a")
    def store(x: f16[16, 16], c: tc.out[f16[16, 16]]):
        far = tc.shared(f16[16, 16])
        held = tc.local(f16[8])
        w = tc.worker()
        for q in tc.static(range(4)):
            for e in tc.static(range(2)):
                row, col = w // 4, w % 4 * 2 + e
                if tc.static(turned):
                    held[2 * q + e] = x[q % 2 * 8 + col, q // 2 * 8 + row]
                else:
                    held[2 * q + e] = x[q % 2 * 8 + row, q // 2 * 8 + col]
        if tc.static(turned):
            tc.cuda.stmatrix_x4_trans(far[w % 16, w // 16 * 8], held[0])
        else:
            tc.cuda.stmatrix_x4(far[w % 16, w // 16 * 8], held[0])
        tc.sync()
        for i, j in repeat(8, 1).spatial(2, 16):
            c[i, j] = far[i, j]

    return load if way == "ldmatrix" else store


# --- clusters and registers ------------------------------------------------------------------


def clustered(machine: Any, *_: Any) -> Any:
    """Each block of a cluster of four writes its row into its right neighbour's shared memory."""
    cluster = 4

    @tc.cuda.kernel(workers=32, target="sm_90a")
    def passed_on(x: f32[8, 32], y: tc.out[f32[8, 32]]):
        for row in tc.tiles(8, by=1, cluster=cluster):
            near = tc.shared(f32[32])
            w, rank = tc.worker(), tc.cuda.cluster_rank()
            tc.cuda.cluster_sync()
            tc.cuda.peer(near, (rank + 1) % cluster)[w] = x[row, w]
            tc.cuda.cluster_sync()
            y[row, w] = near[w]

    return passed_on


def passed_on(x: Any) -> Any:
    import numpy as np

    return np.roll(x.reshape(2, 4, 32), 1, axis=1).reshape(8, 32)


def multicast(machine: Any, *_: Any) -> Any:
    """Each block of a pair has its half of a box sent to both."""

    @tc.cuda.kernel(workers=32, target="sm_90a")
    def sent(x: f32[16, 32], y: tc.out[f32[32, 32]]):
        for row in tc.tiles(32, by=16, cluster=2):
            near = tc.shared(f32[16, 32])
            full = tc.cuda.barriers(1)
            w, rank = tc.worker(), tc.cuda.cluster_rank()
            if w == 0:
                tc.cuda.mbarrier_init(full[0], 1)
            tc.cuda.cluster_sync()
            if w == 0:
                tc.cuda.mbarrier_expect(full[0], 2048)
                tc.cuda.tma_load_multicast(near[8 * rank, 0], x[8 * rank, 0], full[0], 3, 8, 32)
            tc.cuda.mbarrier_wait(full[0], 0)
            for i, j in repeat(16, 1).spatial(1, 32):
                y[row + i, j] = near[i, j]
            tc.cuda.cluster_sync()

    return sent


def twice(x: Any) -> Any:
    import numpy as np

    return np.tile(x, (2, 1))


def registers(machine: Any, *_: Any) -> Any:
    """A warpgroup gives up registers, and another one takes them."""

    @tc.cuda.kernel(workers=256, target="sm_90a")
    def handed(x: f32[256], y: tc.out[f32[256]]):
        w = tc.worker()
        with tc.cuda.roles():
            with tc.cuda.role("giver", warps=4):
                tc.cuda.setmaxnreg(24)
                y[w] = x[w] + 1
            with tc.cuda.role("taker", warps=4):
                tc.cuda.setmaxnreg(240)
                y[w] = x[w] + 1

    return handed


def same(x: Any) -> Any:
    return x


def product(a: Any, b: Any) -> Any:
    return a @ b.T


def _descriptor(row: tuple[DType, DType, int, int, int, str]) -> Single:
    dtype, _, n, k, width, along = row
    build = partial(wgmma if along == "k" else wgmma_across, *row[:5])
    return Single(f"descriptor {dtype} n={n} k={k} swizzle {width} along {along}", build, product)


SINGLES: tuple[Single, ...] = (
    *[
        Single(
            f"TMA {'store' if is_store else 'load'} {dtype} {tall}x{wide} swizzle {swizzle}",
            partial(bulk, dtype, tall, wide, swizzle, is_store), same,
        )
        for dtype, tall, wide, swizzle in BOXES
        for is_store in (False, True)
    ],
    *[_descriptor(row) for row in DESCRIPTORS],
    *[
        Single(f"move {way}{' transposed' * turned}", partial(moved, way, turned), same)
        for way, turned in MOVES
    ],
    Single("cluster peer", clustered, passed_on),
    Single("cluster multicast", multicast, twice),
    Single("cluster setmaxnreg", registers, lambda x: x + 1),
)  # fmt: skip
