"""A warp that has the lock doesn't give it back, and the next one waits for it."""

from __future__ import annotations

import taskc as tc
from taskc import i32


@tc.cuda.kernel(workers=64)
def kernel(lock: tc.inout[i32[1]], total: tc.inout[i32[1]]):
    for _ in tc.tiles(1, by=1):
        w = tc.worker()
        if w == 0:
            tc.atomic_exchange(lock[0], 0)
        tc.sync()
        if w % 32 == 0:
            taken = i32(1)
            while taken == 1:  # expect: deadlock
                taken = tc.atomic_exchange(lock[0], 1)
            tc.atomic_add(total[0], 1)
            # fix: tc.atomic_exchange(lock[0], 0)
