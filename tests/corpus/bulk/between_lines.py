"""The second slot begins 64 bytes behind the first, and bulk copies go to multiples of 128."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[16]]):
    s = tc.shared(f32[2, 16])  # fix: s = tc.shared(f32[2, 32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 64)
        tc.cuda.tma_load(s[1, 0], x[8], full[0], 16)  # expect: misaligned
    tc.cuda.mbarrier_wait(full[0], 0)
    if w < 16:
        y[w] = s[1, w]
