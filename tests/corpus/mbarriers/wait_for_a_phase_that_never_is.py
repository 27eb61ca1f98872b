"""The buffer is filled once, and waited for twice."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[2, 32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 32)
    tc.sync()
    s[w] = x[w]
    tc.cuda.mbarrier_arrive(full[0])
    for t in range(2):
        tc.cuda.mbarrier_wait(full[0], t)  # expect: deadlock
        # ^ fix: tc.cuda.mbarrier_wait(full[0], 0)
        y[t, w] = s[31 - w]
