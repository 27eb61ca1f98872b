"""Blocks write to each other's memory at once, when the other one may not have begun."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        s = tc.shared(f32[32])
        w = tc.worker()
        # fix: tc.cuda.cluster_sync()
        tc.cuda.peer(s, 1 - tc.cuda.cluster_rank())[w] = x[i, w]  # expect: unstarted-peer
        tc.cuda.cluster_sync()
        y[i, w] = s[31 - w]
