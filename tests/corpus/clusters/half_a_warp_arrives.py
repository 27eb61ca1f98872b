"""Half of a warp comes to the barrier of the cluster, and the whole of it waits."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        w = tc.worker()
        y[i, w] = x[i, w]
        # fix: tc.cuda.cluster_arrive()
        if w < 16:
            tc.cuda.cluster_arrive()  # expect: barrier-divergence
            # ^ fix: tc.print("{}", w)
        tc.cuda.cluster_wait()  # expect: barrier-divergence
