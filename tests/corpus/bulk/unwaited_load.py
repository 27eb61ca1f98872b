"""A bulk copy is read behind a barrier of the block, which doesn't wait for it."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 256)
        tc.cuda.tma_load(s[0], x[0], full[0], 64)
    tc.sync()  # fix: tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[w]  # expect: unwaited-copy
