"""Every worker of the warp starts the bulk copy that one is to start."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 128)
        # fix: tc.cuda.tma_load(s[0], x[0], full[0], 32)
    tc.cuda.tma_load(s[0], x[0], full[0], 32)  # expect: several-issuers  # fix:
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[31 - w]
