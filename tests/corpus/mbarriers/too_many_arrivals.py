"""Both warps arrive at an mbarrier that counts the workers of one."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 48)  # fix: tc.cuda.mbarrier_init(full[0], 64)
    tc.sync()
    s[w] = x[w]
    tc.cuda.mbarrier_arrive(full[0])  # expect: over-arrival
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[w]
