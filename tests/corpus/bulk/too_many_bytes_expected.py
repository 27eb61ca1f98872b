"""More bytes are expected than the box has."""

from __future__ import annotations

import taskc as tc
from taskc import f16


@tc.cuda.kernel(workers=32)
def kernel(x: f16[64, 8], y: tc.out[f16[4, 8]]):
    s = tc.shared(f16[4, 8])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 128)  # fix: tc.cuda.mbarrier_expect(full[0], 64)
        tc.cuda.tma_load(s[0, 0], x[8, 0], full[0], 4, 8)
    tc.cuda.mbarrier_wait(full[0], 0)  # expect: deadlock
    y[w // 8, w % 8] = s[w // 8, w % 8]
