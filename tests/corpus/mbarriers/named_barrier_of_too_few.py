"""A named barrier for one warp lets two warps through one after the other."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=96)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    with tc.cuda.roles():
        with tc.cuda.role("idle", warps=1):
            pass
        with tc.cuda.role("busy", warps=2):
            for i in spatial(64):
                s[i] = x[i]  # expect: race
            tc.cuda.barrier_named(1, 32)  # expect: race  # fix: tc.cuda.barrier_named(1, 64)
            for i in spatial(64):
                y[i] = s[63 - i]  # expect: race  # expect: uninitialized
