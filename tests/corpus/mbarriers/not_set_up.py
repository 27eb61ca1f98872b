"""Two mbarriers are allocated, and only the first is set up."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    full = tc.cuda.barriers(2)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 32)
    tc.sync()
    s[w] = x[w]
    slot = tc.static(1)  # fix: slot = tc.static(0)
    tc.cuda.mbarrier_arrive(full[slot])  # expect: uninitialized
    tc.cuda.mbarrier_wait(full[slot], 0)  # expect: uninitialized
    y[w] = s[w]
