"""Waiting for parity 1 is over at once: that is the phase before the first."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    if tc.worker() == 0:
        tc.cuda.mbarrier_init(full[0], 32)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("producer", warps=1):
            for i in spatial(32):
                s[i] = x[i]  # expect: race
            tc.cuda.mbarrier_arrive(full[0])
        with tc.cuda.role("consumer", warps=1):
            tc.cuda.mbarrier_wait(full[0], 1)  # fix: tc.cuda.mbarrier_wait(full[0], 0)
            for i in spatial(32):
                y[i] = s[31 - i]  # expect: uninitialized
