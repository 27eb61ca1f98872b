"""A block ends while the other one may still read its memory."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        s = tc.shared(f32[32])
        w = tc.worker()
        s[w] = x[i, w]
        tc.cuda.cluster_sync()
        y[i, w] = tc.cuda.peer(s, 1 - tc.cuda.cluster_rank())[w]  # expect: ended-peer
        # fix: tc.cuda.cluster_sync()
