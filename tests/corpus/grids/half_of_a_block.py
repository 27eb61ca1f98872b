"""Half of each block comes to the barrier of the grid."""

from __future__ import annotations

import taskc as tc
from taskc import i64


@tc.cuda.kernel(workers=64)
def kernel(x: i64[2, 64], z: tc.inout[i64[2, 64]], y: tc.out[i64[2, 64]]):
    for row in tc.tiles(2, by=1):
        w = tc.worker()
        z[row, w] = x[row, w]
        # fix: tc.cuda.grid_sync()
        if w < 32:
            tc.cuda.grid_sync()  # expect: barrier-divergence  # fix: tc.cuda.syncwarp()
        y[row, w] = 0
