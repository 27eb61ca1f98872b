"""One role counts 64 workers at a named barrier, and the other one 96."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=96)
def kernel(x: f32[32], y: tc.out[f32[64]]):
    s = tc.shared(f32[32])
    with tc.cuda.roles():
        with tc.cuda.role("writer", warps=1):
            for i in spatial(32):
                s[i] = x[i]
            tc.cuda.barrier_named(3, 96)
        with tc.cuda.role("readers", warps=2):
            tc.cuda.barrier_named(3, 64)  # expect: barrier-divergence
            # ^ fix: tc.cuda.barrier_named(3, 96)
            for i in spatial(64):
                y[i] = s[i % 32]
