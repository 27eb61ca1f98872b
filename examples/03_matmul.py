"""A matrix product: naive, mapped, pipelined, and on tensor cores.

`spatial(2, 2) * spatial(4, 8) * repeat(4, 4)` says: 2 x 2 warps, each of 4 x 8 lanes, and each lane
owns 4 x 4 neighbouring elements of the result, which it keeps in registers.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f16, f32, repeat, spatial


def make_naive(m: int, n: int, k: int, *, size: tuple[int, int] = (8, 16)) -> tc.KernelDefinition:
    """A worker for each element of the result; every operand comes from global memory."""
    own = spatial(*size)

    @tc.kernel(workers=own.workers)
    def naive(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]) -> None:
        for row, col in tc.tiles((m, n), by=own.shape):
            for i, j in own:
                if row + i < m and col + j < n:
                    total = f32(0)
                    for q in range(k):
                        total += a[row + i, q] * b[q, col + j]
                    c[row + i, col + j] = total

    return naive


def make_mapped(
    m: int,
    n: int,
    k: int,
    *,
    warps: tuple[int, int] = (2, 2),
    lanes: tuple[int, int] = (4, 8),
    regs: tuple[int, int] = (4, 4),
    bk: int = 8,
) -> tc.KernelDefinition:
    """Blocks of the operands in shared memory, and the result in its owners' registers."""
    own = spatial(*warps) * spatial(*lanes) * repeat(*regs)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def mapped(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]) -> None:
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in range(0, k, bk):
                sa = tc.load(a[row : row + bm, p : p + bk])  # by all workers together
                sb = tc.load(b[p : p + bk, col : col + bn])
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return mapped


def make_pipelined(
    m: int,
    n: int,
    k: int,
    *,
    warps: tuple[int, int] = (2, 2),
    lanes: tuple[int, int] = (4, 8),
    regs: tuple[int, int] = (4, 4),
    bk: int = 8,
    stages: int = 2,
    transport: str | None = None,
    specialize: bool = False,
) -> tc.KernelDefinition:
    """The same, but the loads of later steps are on their way while one step is computed."""
    own = spatial(*warps) * spatial(*lanes) * repeat(*regs)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def pipelined(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]) -> None:
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(
                k, by=bk, stages=stages, transport=transport, specialize=specialize
            ):
                sa = tc.load(a[row : row + bm, p : p + bk])
                sb = tc.load(b[p : p + bk, col : col + bn])
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return pipelined


def make_tensor_cores(
    m: int,
    n: int,
    k: int,
    *,
    warps: tuple[int, int] = (2, 2),
    tile: tuple[int, int] = (1, 2),
    bk: int = 32,
    stages: int = 3,
) -> tc.KernelDefinition:
    """Products of 16 x 8 fragments: which lane holds which element is the instruction's choice."""
    fragment = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    own = spatial(*warps) * repeat(*tile) * fragment
    bm, bn = own.shape

    @tc.kernel(workers=own.workers, target="sm_80")
    def tensor_cores(a: f16[m, k], b: f16[k, n], c: tc.out[f32[m, n]]) -> None:
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=bk, stages=stages):
                sa = tc.load(a[row : row + bm, p : p + bk])
                sb = tc.load(b[p : p + bk, col : col + bn])
                tc.mma(acc, sa, sb)
            tc.store(c[row : row + bm, col : col + bn], acc)

    return tensor_cores


naive = make_naive(50, 70, 44)
mapped = make_mapped(50, 70, 44)
pipelined = make_pipelined(50, 70, 44)
specialized = make_pipelined(20, 36, 76, warps=(1, 1), stages=3, specialize=True)
tensor_cores = make_tensor_cores(50, 72, 168)


def main() -> None:
    errors = []
    for kernel in (naive, mapped, pipelined, specialized, tensor_cores):
        a, b = kernel.example()
        exact = a.astype(np.float64) @ b.astype(np.float64)
        errors.append(f"{kernel.name} {np.abs(kernel(a, b) - exact).max():.1e}")
    print(f"matmul: largest error {', '.join(errors)}")


if __name__ == "__main__":
    main()
