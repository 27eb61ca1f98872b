"""The consumer never says that a slot is free again: the producer waits for ever."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[6, 32], y: tc.out[f32[6, 32]]):
    s = tc.shared(f32[2, 32])
    full = tc.cuda.barriers(2)
    empty = tc.cuda.barriers(2)
    if tc.worker() == 0:
        for slot in range(2):
            tc.cuda.mbarrier_init(full[slot], 32)
            tc.cuda.mbarrier_init(empty[slot], 32)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("producer", warps=1):
            for t in range(6):
                tc.cuda.mbarrier_wait(empty[t % 2], (t // 2 + 1) % 2)  # expect: deadlock
                for i in spatial(32):
                    s[t % 2, i] = x[t, i]
                tc.cuda.mbarrier_arrive(full[t % 2])
        with tc.cuda.role("consumer", warps=1):
            for t in range(6):
                tc.cuda.mbarrier_wait(full[t % 2], t // 2 % 2)
                for i in spatial(32):
                    y[t, i] = s[t % 2, 31 - i]
                # fix: tc.cuda.mbarrier_arrive(empty[t % 2])
