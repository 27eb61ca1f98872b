"""Each worker waits for its own copies, and reads those of others."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[256], y: tc.out[f32[256]]):
    s = tc.shared(f32[256])
    w = tc.worker()
    tc.cuda.cp_async(s[4 * w], x[4 * w], 4, True)
    tc.cuda.cp_async_commit()
    tc.cuda.cp_async_wait(0)
    # fix: tc.sync()
    for t in range(4):
        y[64 * t + w] = s[64 * t + w]  # expect: race
