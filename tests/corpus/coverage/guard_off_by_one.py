"""The guard keeps out the last row."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial

n = tc.dim("n", example=37)


@tc.kernel(workers=32)
def kernel(x: f32[n], y: tc.out[f32[n]]):  # expect: not-written
    for r in tc.tiles(n, by=32):
        for i in spatial(32):
            if r + i < n - 1:  # fix: if r + i < n:
                y[r + i] = 2 * x[r + i]  # proof: are not stored
