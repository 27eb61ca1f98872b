"""Every worker sets up the mbarrier, where one is to."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w < 32:  # fix: if w == 0:
        tc.cuda.mbarrier_init(full[0], 32)  # expect: several-issuers
    tc.sync()
    s[w] = x[w]
    tc.cuda.mbarrier_arrive(full[0])
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[31 - w]
