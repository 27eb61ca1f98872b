"""The others use the mbarrier without waiting until it is set up."""

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
    # fix: tc.sync()
    s[w] = x[w]
    tc.cuda.mbarrier_arrive(full[0])  # expect: race
    tc.cuda.mbarrier_wait(full[0], 0)  # expect: race
    y[w] = s[31 - w]
