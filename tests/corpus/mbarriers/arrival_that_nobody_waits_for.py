"""A warp gives another one its turn once more than that one takes it."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    with tc.cuda.roles():
        with tc.cuda.role("reader", warps=1):
            tc.cuda.barrier_named(1, 64)
            for i in spatial(32):
                y[i] = s[31 - i]
        with tc.cuda.role("writer", warps=1):
            for i in spatial(32):
                s[i] = x[i]
            tc.cuda.barrier_arrive(1, 64)
            tc.cuda.barrier_arrive(1, 64)  # expect: barrier-divergence  # fix: pass
