"""Rows are padded by one element against bank conflicts, and then copied 8 bytes at a time."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat

ROWS = repeat(16, 3)  # fix: ROWS = repeat(16, 4)


@tc.cuda.kernel(workers=16)
def kernel(x: f32[16, 2], y: tc.out[f32[16, 2]]):
    s = tc.shared(f32[16, 2].laid(ROWS))
    w = tc.worker()
    tc.cuda.cp_async(s[w, 0], x[w, 0], 2, True)  # expect: misaligned
    tc.cuda.cp_async_commit()
    tc.cuda.cp_async_wait(0)
    for t in range(2):
        y[w, t] = s[w, t]
