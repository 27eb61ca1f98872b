"""Two blocks exchange messages, and each waits for the other's before it sends its own."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        s = tc.shared(f32[32])
        come = tc.cuda.barriers(1)
        w = tc.worker()
        other = 1 - tc.cuda.cluster_rank()
        if w == 0:
            tc.cuda.mbarrier_init(come[0], 32)
        tc.cuda.cluster_sync()
        there = tc.cuda.peer(come, other)
        tc.cuda.peer(s, other)[w] = x[i, w]
        # fix: tc.cuda.mbarrier_arrive(there[0])
        tc.cuda.mbarrier_wait(come[0], 0)  # expect: deadlock
        tc.cuda.mbarrier_arrive(there[0])  # fix:
        y[i, w] = s[31 - w]
        tc.cuda.cluster_sync()
