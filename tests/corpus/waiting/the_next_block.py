"""Blocks wait for those behind them, which begin when there is room for them."""

from __future__ import annotations

import taskc as tc
from taskc import i32


@tc.cuda.kernel(workers=32)
def kernel(x: i32[4], flag: tc.inout[i32[5]], total: tc.inout[i32[5]]):
    for b in tc.tiles(4, by=1):
        if tc.worker() == 31:
            tc.atomic_exchange(flag[0], 9)
            tc.atomic_exchange(flag[4], 9)
            ready = i32(0)
            while ready == 0:  # expect: deadlock
                ready = tc.atomic_add(flag[b + 1], 0)  # fix: ready = tc.atomic_add(flag[b], 0)
            tc.atomic_exchange(flag[b], 9)  # fix: tc.atomic_exchange(flag[b + 1], 9)
            tc.atomic_add(total[b], x[b])
