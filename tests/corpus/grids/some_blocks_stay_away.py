"""Blocks that have nothing to store don't come to the barrier, and the others wait for ever."""

from __future__ import annotations

import taskc as tc
from taskc import i64


@tc.cuda.kernel(workers=32)
def kernel(x: i64[4, 32], z: tc.inout[i64[4, 32]], y: tc.out[i64[4, 32]]):
    for row in tc.tiles(4, by=1):
        w = tc.worker()
        z[row, w] = 2 * x[row, w]
        # fix: tc.cuda.grid_sync()
        if row > 0:
            tc.cuda.grid_sync()  # expect: barrier-divergence  # fix: tc.sync()
        y[row, w] = row
