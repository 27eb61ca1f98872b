"""A multicast's mask has a bit for a third block, in a cluster of two."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        s = tc.shared(f32[32])
        full = tc.cuda.barriers(1)
        w = tc.worker()
        mask = 7  # fix: mask = 3
        if w == 0:
            tc.cuda.mbarrier_init(full[0], 1)
            tc.cuda.mbarrier_expect(full[0], 128)
        tc.cuda.cluster_sync()
        if i == 0 and w == 0:
            tc.cuda.tma_load_multicast(s[0], x[0], full[0], mask, 32)  # expect: out-of-bounds
        tc.cuda.mbarrier_wait(full[0], 0)
        y[i, w] = s[w]
