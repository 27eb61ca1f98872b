"""The lanes that don't wait for the mbarrier read what other warps have yet to write."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 64)
    tc.sync()
    s[w] = x[w]
    tc.cuda.mbarrier_arrive(full[0])
    if w % 32 < 16:  # fix: if w < 64:
        tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[63 - w]  # expect: race
