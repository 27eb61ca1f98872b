"""A named barrier, which whole warps come to, in a branch that half of each warp takes."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = x[w]
    if w % 32 < 16:  # fix: if w < 64:
        tc.cuda.barrier_named(1, 64)  # expect: barrier-divergence
    y[w] = s[63 - w]
