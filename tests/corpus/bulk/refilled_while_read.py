"""The consumer releases a slot before it has read it, and the next load overwrites it."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[256], y: tc.out[f32[256]]):
    s = tc.shared(f32[2, 64])
    full = tc.cuda.barriers(2)
    empty = tc.cuda.barriers(2)
    w = tc.worker()
    if w == 0:
        for slot in range(2):
            tc.cuda.mbarrier_init(full[slot], 1)
            tc.cuda.mbarrier_init(empty[slot], 32)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("producer", warps=1):
            for t in range(4):
                tc.cuda.mbarrier_wait(empty[t % 2], (t // 2 + 1) % 2)
                if w == 0:
                    tc.cuda.mbarrier_expect(full[t % 2], 256)
                    tc.cuda.tma_load(s[t % 2, 0], x[64 * t], full[t % 2], 64)  # expect: race
        with tc.cuda.role("consumer", warps=1):
            for t in range(4):
                tc.cuda.mbarrier_wait(full[t % 2], t // 2 % 2)
                tc.cuda.mbarrier_arrive(empty[t % 2])  # fix:
                for i in spatial(32):
                    y[64 * t + i] = s[t % 2, 63 - i]
                    y[64 * t + 32 + i] = s[t % 2, 31 - i]
                # fix: tc.cuda.mbarrier_arrive(empty[t % 2])
