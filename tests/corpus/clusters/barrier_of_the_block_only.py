"""A barrier of the block stands where the blocks of the cluster have to wait for each other."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        s = tc.shared(f32[32])
        w = tc.worker()
        s[w] = 0
        tc.cuda.cluster_sync()
        tc.cuda.peer(s, 1 - tc.cuda.cluster_rank())[w] = x[i, w]  # expect: race
        tc.sync()  # fix: tc.cuda.cluster_sync()
        y[i, w] = s[31 - w]  # expect: race
        tc.cuda.cluster_sync()
