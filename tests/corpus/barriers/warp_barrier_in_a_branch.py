"""A barrier of the warp in a branch that only its first half takes."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[16]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    s[w] = x[w]
    # fix: tc.cuda.syncwarp()
    if w < 16:
        tc.cuda.syncwarp()  # expect: barrier-divergence  # fix:
        y[w] = s[w + 16]  # expect: race
