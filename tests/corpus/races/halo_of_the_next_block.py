"""A block reads the first element of the next one, which that one is replacing."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[128], y: tc.inout[f32[128]]):
    for r in tc.tiles(128, by=32):
        sums = tc.shared(f32[32])
        for i in spatial(32):
            if r + i < 127:
                sums[i] = y[r + i] + y[r + i + 1]  # fix: sums[i] = x[r + i] + x[r + i + 1]
            else:
                sums[i] = 0
        for i in spatial(32):
            y[r + i] = sums[i]  # expect: race  # proof: no order holds
