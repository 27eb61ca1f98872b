"""The warps go around a loop with a barrier differently often."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[2, 64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    total = f32(0)
    for t in range(w // 32 + 1):  # fix: for t in range(2):
        s[w] = x[t, w]
        tc.sync()  # expect: barrier-divergence
        total += s[w]
    y[w] = total
