"""All workers of a role read the same element, and wait for it only afterwards."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=96)
def kernel(x: f32[32], y: tc.out[f32[64]]):
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
        with tc.cuda.role("consumer", warps=2):
            # fix: tc.cuda.mbarrier_wait(full[0], 0)
            middle = s[16]  # expect: race  # expect: uninitialized
            tc.cuda.mbarrier_wait(full[0], 0)
            for i in spatial(64):
                y[i] = middle
