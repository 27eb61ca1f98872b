"""One of two warps never comes to the barrier."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = 2 * x[w]
    if w < 32:  # fix: if w < 64:
        tc.sync()  # expect: barrier-divergence
    y[w] = s[w]
