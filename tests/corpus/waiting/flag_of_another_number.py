"""The first block says that it is done with another number, so the others wait for ever."""

from __future__ import annotations

import taskc as tc
from taskc import i32, spatial


@tc.kernel(workers=4)
def kernel(x: i32[3], flag: tc.inout[i32[3]], total: tc.inout[i32[3]]):
    for b in tc.tiles(3, by=1):
        for w in spatial(4):
            if w == 2:
                before = i32(0)
                if b > 0:
                    ready = i32(0)
                    while ready != 9:  # expect: deadlock
                        ready = tc.atomic_add(flag[b - 1], 0)
                    before = tc.atomic_add(total[b - 1], 0)
                tc.atomic_exchange(total[b], before + x[b])
                tc.atomic_exchange(flag[b], 8)  # fix: tc.atomic_exchange(flag[b], 9)
