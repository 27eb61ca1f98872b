"""Two of three blocks leave their sums at one place of each block's memory."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[3], y: tc.out[f32[3]]):
    for i in tc.tiles(3, by=1, cluster=3):
        s = tc.shared(f32[3])
        rank = tc.cuda.cluster_rank()
        w = tc.worker()
        place = rank // 2  # fix: place = rank
        if w == 2:
            s[w] = 0
        tc.cuda.cluster_sync()
        if w < 3:
            tc.cuda.peer(s, w)[place] = x[i]  # expect: race
        tc.cuda.cluster_sync()
        if w == 0:
            y[i] = s[0] + s[1] + s[2]
