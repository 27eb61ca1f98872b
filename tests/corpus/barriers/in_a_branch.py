"""A barrier of the block in a branch that half of a warp takes."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[48], y: tc.out[f32[48]]):
    s = tc.shared(f32[48])
    w = tc.worker()
    if w < 48:
        s[w] = x[w]
        # fix-out: tc.sync()
    if w < 48:
        tc.sync()  # expect: barrier-divergence  # fix:
        y[w] = s[47 - w]  # expect: race
