"""Bytes are expected for one of the two operands."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(a: f32[32], b: f32[32], y: tc.out[f32[32]]):
    sa = tc.shared(f32[32])
    sb = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 128)  # fix: tc.cuda.mbarrier_expect(full[0], 256)
        tc.cuda.tma_load(sa[0], a[0], full[0], 32)
        tc.cuda.tma_load(sb[0], b[0], full[0], 32)
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = sa[w] * sb[31 - w]  # expect: unwaited-copy
