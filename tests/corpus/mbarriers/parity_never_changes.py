"""The consumer waits for parity 0 in every turn, and so frees a slot that isn't full yet."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(1)
    empty = tc.cuda.barriers(1)
    if tc.worker() == 0:
        tc.cuda.mbarrier_init(full[0], 32)
        tc.cuda.mbarrier_init(empty[0], 32)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("producer", warps=1):
            for t in range(2):
                tc.cuda.mbarrier_wait(empty[0], (t + 1) % 2)  # expect: deadlock
                for i in spatial(32):
                    s[i] = x[t, i]
                tc.cuda.mbarrier_arrive(full[0])
        with tc.cuda.role("consumer", warps=1):
            for t in range(2):
                tc.cuda.mbarrier_wait(full[0], 0)  # fix: tc.cuda.mbarrier_wait(full[0], t % 2)
                for i in spatial(32):
                    y[t, i] = s[31 - i]
                tc.cuda.mbarrier_arrive(empty[0])
