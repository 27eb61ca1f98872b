"""The neighbour of the last block of a cluster isn't taken around to the first one."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[4, 32], y: tc.out[f32[4, 32]]):
    for i in tc.tiles(4, by=1, cluster=4):
        s = tc.shared(f32[32])
        w = tc.worker()
        s[w] = x[i, w]
        tc.cuda.cluster_sync()
        following = tc.cuda.cluster_rank() + 1  # fix: following = (tc.cuda.cluster_rank() + 1) % 4
        y[i, w] = tc.cuda.peer(s, following)[w]  # expect: out-of-bounds
        tc.cuda.cluster_sync()
