"""A stage is released when its bulk store was started, and not when that has read it."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[8, 32], y: tc.out[f32[8, 32]]):
    s = tc.shared(f32[2, 32])
    full = tc.cuda.barriers(2)
    empty = tc.cuda.barriers(2)
    w = tc.worker()
    if w == 0:
        for slot in range(2):
            tc.cuda.mbarrier_init(full[slot], 32)
            tc.cuda.mbarrier_init(empty[slot], 1)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("compute", warps=1):
            for t in range(8):
                tc.cuda.mbarrier_wait(empty[t % 2], (t // 2 + 1) % 2)
                for i in spatial(32):
                    s[t % 2, i] = tc.tanh(x[t, i])  # expect: unwaited-copy
                tc.cuda.fence_proxy_async()
                tc.cuda.mbarrier_arrive(full[t % 2])
        with tc.cuda.role("store", warps=1):
            for t in range(8):
                tc.cuda.mbarrier_wait(full[t % 2], t // 2 % 2)
                if w == 32:
                    tc.cuda.tma_store(y[t, 0], s[t % 2, 0], 1, 32)
                    tc.cuda.tma_commit()
                    # fix: tc.cuda.tma_wait(0)
                    tc.cuda.mbarrier_arrive(empty[t % 2])
            if w == 32:
                tc.cuda.tma_wait(0)
