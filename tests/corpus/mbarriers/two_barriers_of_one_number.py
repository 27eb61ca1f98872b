"""Two pairs of warps use the barrier of one number, and meet each other instead."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=128)
def kernel(x: f32[128], y: tc.out[f32[128]]):
    s = tc.shared(f32[128])
    with tc.cuda.roles():
        with tc.cuda.role("left", warps=2):
            for i in spatial(64):
                s[i] = x[i]
            tc.cuda.barrier_named(1, 64)
            for i in spatial(64):
                y[i] = s[63 - i]
        with tc.cuda.role("right", warps=2):
            for i in spatial(64):
                s[64 + i] = x[64 + i]
            tc.cuda.barrier_named(2, 64)
            for i in spatial(64):
                y[64 + i] = s[127 - i]
            tc.cuda.barrier_named(1, 64)  # expect: barrier-divergence
            # ^ fix: tc.cuda.barrier_named(2, 64)
