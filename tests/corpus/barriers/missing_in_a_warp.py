"""Neighbours in one warp exchange values through memory: they need a barrier too."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    s[w] = x[w]
    # fix: tc.cuda.syncwarp()
    y[w] = s[w ^ 1] - x[w]  # expect: race
