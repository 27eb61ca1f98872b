"""A sum in one launch: each block sums a row, and when all have, the first one adds the sums."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import i64


def make_total(blocks: int, workers: int, *, waits: bool = True, target: str = "sm_90a") -> Any:
    """waits  whether the first block waits for the others, as it must"""

    @tc.cuda.kernel(workers=workers, target=target)
    def total(x: i64[blocks, workers], parts: tc.inout[i64[blocks]], y: tc.out[i64[1]]):
        for row in tc.tiles(blocks, by=1):
            s = tc.shared(i64[workers])
            w = tc.worker()
            s[w] = x[row, w]
            tc.sync()
            if w == 0:
                mine = i64(0)
                for i in range(workers):
                    mine += s[i]
                parts[row] = mine
            if tc.static(waits):
                tc.cuda.grid_sync()
            if row == 0 and w == 0:
                whole = i64(0)
                for i in range(blocks):
                    whole += parts[i]
                y[0] = whole

    return total
