"""A matrix product, in three steps and on tensor cores.

`spatial(2, 2) * spatial(4, 8) * repeat(4, 4)` says: 2 x 2 warps, each of 4 x 8 lanes, each lane with
4 x 4 neighbouring elements of the result, which it keeps in registers.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f16, f32, repeat, spatial


def make_naive(m, n, k, *, size=(8, 16)):
    """A worker for each element of the result, and every operand from global memory."""
    own = spatial(*size)

    @tc.kernel(workers=own.workers)
    def naive(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=own.shape):
            for i, j in own:
                if row + i < m and col + j < n:
                    total = f32(0)
                    for q in range(k):
                        total += a[row + i, q] * b[q, col + j]
                    c[row + i, col + j] = total

    return naive


def make_mapped(m, n, k, *, warps=(2, 2), lanes=(4, 8), regs=(4, 4), bk=8):
    """Operands by way of shared memory, and the result in the registers of its owners."""
    own = spatial(*warps) * spatial(*lanes) * repeat(*regs)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def mapped(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in range(0, k, bk):
                sa = tc.load(a[row : row + bm, p : p + bk])  # all workers together
                sb = tc.load(b[p : p + bk, col : col + bn])
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return mapped


def make_pipelined(
    m, n, k, *, warps=(2, 2), lanes=(4, 8), regs=(4, 4), bk=8, stages=2, transport=None, **how
):
    """The same, and while one step is computed the loads of later ones are on their way."""
    own = spatial(*warps) * spatial(*lanes) * repeat(*regs)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def pipelined(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=bk, stages=stages):
                sa = tc.load(a[row : row + bm, p : p + bk])
                sb = tc.load(b[p : p + bk, col : col + bn])
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return pipelined
