"""Every worker expects the bytes of all copies, and the sum is more than an mbarrier counts."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 64)
    tc.sync()
    if w == 0:
        tc.cuda.tma_load(s[0], x[0], full[0], 32)
    tc.cuda.mbarrier_expect(full[0], 16512)  # expect: out-of-range
    # ^ fix: tc.cuda.mbarrier_expect(full[0], 2)
    tc.cuda.mbarrier_wait(full[0], 0)  # expect: deadlock
    if w < 32:
        y[w] = s[w]
