"""The barrier comes before the wait, where it orders nothing that has arrived."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    tc.cuda.cp_async(s[w], x[w], 1, True)
    tc.cuda.cp_async_commit()
    tc.sync()  # fix: tc.cuda.cp_async_wait(0)
    tc.cuda.cp_async_wait(0)  # fix: tc.sync()
    y[w] = s[63 - w]  # expect: race
