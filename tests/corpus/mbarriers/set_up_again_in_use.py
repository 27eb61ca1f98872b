"""The mbarrier is set up again while others may not have seen its phase complete."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 32)
    tc.sync()
    s[w] = x[w]
    tc.cuda.mbarrier_arrive(full[0])
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[31 - w]
    # fix: tc.sync()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)  # expect: race
