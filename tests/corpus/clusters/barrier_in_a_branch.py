"""Only one of the blocks comes to the barrier of the cluster."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        w = tc.worker()
        y[i, w] = x[i, w]
        # fix: tc.cuda.cluster_sync()
        if tc.cuda.cluster_rank() == 0:
            tc.cuda.cluster_sync()  # expect: barrier-divergence  # fix:
            tc.cuda.syncwarp()
