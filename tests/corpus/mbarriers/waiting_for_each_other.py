"""Two roles exchange messages, and each waits for the other's before it sends its own."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    s = tc.shared(f32[2, 32])
    sent = tc.cuda.barriers(2)
    if tc.worker() == 0:
        tc.cuda.mbarrier_init(sent[0], 32)
        tc.cuda.mbarrier_init(sent[1], 32)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("left", warps=1):
            tc.cuda.mbarrier_wait(sent[1], 0)  # expect: deadlock  # fix:
            for i in spatial(32):
                s[0, i] = x[0, i]
            tc.cuda.mbarrier_arrive(sent[0])
            # fix: tc.cuda.mbarrier_wait(sent[1], 0)
            for i in spatial(32):
                y[0, i] = s[1, 31 - i]
        with tc.cuda.role("right", warps=1):
            tc.cuda.mbarrier_wait(sent[0], 0)
            for i in spatial(32):
                s[1, i] = x[1, i] + s[0, i]
            tc.cuda.mbarrier_arrive(sent[1])
            for i in spatial(32):
                y[1, i] = s[1, i]
