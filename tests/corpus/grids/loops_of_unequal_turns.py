"""A block comes to the barrier as often as its row's number says, and others wait for it."""

from __future__ import annotations

import taskc as tc
from taskc import i64


@tc.cuda.kernel(workers=32)
def kernel(y: tc.out[i64[3, 32]]):
    for row in tc.tiles(3, by=1):
        steps = i64(0)
        turns = row  # fix: turns = 3
        while steps < turns:
            steps += 1
            tc.cuda.grid_sync()  # expect: barrier-divergence
        y[row, tc.worker()] = row
