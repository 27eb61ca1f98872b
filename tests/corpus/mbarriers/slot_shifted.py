"""The consumer reads the slot after the one that it has waited for."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[6, 32], y: tc.out[f32[6, 32]]):
    s = tc.shared(f32[3, 32])
    full = tc.cuda.barriers(3)
    empty = tc.cuda.barriers(3)
    if tc.worker() == 0:
        for slot in range(3):
            tc.cuda.mbarrier_init(full[slot], 32)
            tc.cuda.mbarrier_init(empty[slot], 32)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("producer", warps=1):
            for t in range(6):
                tc.cuda.mbarrier_wait(empty[t % 3], (t // 3 + 1) % 2)
                for i in spatial(32):
                    s[t % 3, i] = x[t, i]  # expect: race
                tc.cuda.mbarrier_arrive(full[t % 3])
        with tc.cuda.role("consumer", warps=1):
            for t in range(6):
                tc.cuda.mbarrier_wait(full[t % 3], t // 3 % 2)
                for i in spatial(32):
                    y[t, i] = s[(t + 1) % 3, 31 - i]  # expect: race
                    # ^ fix: y[t, i] = s[t % 3, 31 - i]
                tc.cuda.mbarrier_arrive(empty[t % 3])
