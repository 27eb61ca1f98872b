"""A barrier of the block stands where all blocks have to wait for each other."""

from __future__ import annotations

import taskc as tc
from taskc import i64


@tc.cuda.kernel(workers=32)
def kernel(x: i64[4, 32], z: tc.inout[i64[4, 32]], y: tc.out[i64[4, 32]]):
    for row in tc.tiles(4, by=1):
        w = tc.worker()
        z[row, w] = 2 * x[row, w]
        tc.sync()  # fix: tc.cuda.grid_sync()
        y[row, w] = z[3 - row, w]  # expect: race
