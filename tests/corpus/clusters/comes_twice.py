"""The barrier of the cluster is come to twice before anybody waits."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    for i in tc.tiles(2, by=1, cluster=2):
        w = tc.worker()
        tc.cuda.cluster_arrive()
        y[i, w] = x[i, w]
        tc.cuda.cluster_arrive()  # expect: over-arrival  # fix:
        tc.cuda.cluster_wait()
