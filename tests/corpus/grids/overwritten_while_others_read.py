"""The second step overwrites what other blocks may still read in the first one."""

from __future__ import annotations

import taskc as tc
from taskc import i64


@tc.cuda.kernel(workers=32)
def kernel(x: tc.inout[i64[4, 32]]):
    for row in tc.tiles(4, by=1):
        w = tc.worker()
        for _ in range(2):
            neighbour = x[(row + 1) % 4, w]
            # fix: tc.cuda.grid_sync()
            x[row, w] = neighbour + 1  # expect: race
            tc.cuda.grid_sync()
