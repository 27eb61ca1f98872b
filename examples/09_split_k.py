"""A matrix product whose long sums are split among blocks: two kernels, and a program that calls both.

`spatial(4, 8) * repeat(2, 2)` says: 32 workers have 2 by 2 neighbouring elements each, in a block that
multiplies one part of k as in a block that adds the parts up.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_split_k(
    m: int,
    n: int,
    k: int,
    parts: int,
    *,
    lanes: tuple[int, int] = (4, 8),
    regs: tuple[int, int] = (2, 2),
    bk: int = 8,
    stages: int = 2,
) -> tc.ProgramDefinition:
    own = spatial(*lanes) * repeat(*regs)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def partial(a: f32[m, k], b: f32[k, n], c: tc.out[f32[parts, m, n]]) -> None:
        depth = tc.cdiv(k, parts * bk) * bk  # whole steps; the last parts are shorter, or empty
        for part, row, col in tc.tiles((parts, m, n), by=(1, bm, bn)):
            first = part * depth
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(depth, by=bk, stages=stages):
                sa = tc.load(a[row : row + bm, first + p : first + p + bk])
                sb = tc.load(b[first + p : first + p + bk, col : col + bn])
                tc.mma(acc, sa, sb)
            tc.store(c[part, row : row + bm, col : col + bn], acc)

    @tc.kernel(workers=own.workers)
    def total(p: f32[parts, m, n], c: tc.out[f32[m, n]]) -> None:
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for part in range(parts):
                for i, j in own:
                    if row + i < m and col + j < n:
                        acc[i, j] += p[part, row + i, col + j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    @tc.program
    def split_k(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]) -> None:
        p = tc.empty(f32[parts, m, n])
        partial(a, b, out=p)
        total(p, out=c)

    return split_k


split_k = make_split_k(12, 20, 150, 4)


def main() -> None:
    a, b = split_k.example()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    print(f"split_k: largest error {np.abs(split_k(a, b) - exact).max():.1e}")


if __name__ == "__main__":
    main()
