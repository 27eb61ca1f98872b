"""Sixteen bytes are copied at once, from rows of the input that are 68 bytes long."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=16)
def kernel(x: f32[16, 17], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    tc.cuda.cp_async(s[4 * w], x[w, 0], 4, True)  # expect: misaligned
    # ^ fix: tc.cuda.cp_async(s[4 * w], x[w // 4 * 4, w % 4 * 4], 4, True)
    tc.cuda.cp_async_commit()
    tc.cuda.cp_async_wait(0)
    for t in range(4):
        y[4 * w + t] = s[4 * w + t]
