"""The index is clamped to the extent, which is one past the last element."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial

n = tc.dim("n", example=40)


@tc.kernel(workers=32)
def kernel(x: f32[n], y: tc.out[f32[n]]):
    for r in tc.tiles(n, by=32):
        for i in spatial(32):
            if r + i < n:
                y[r + i] = x[min(r + i + 2, n)]  # expect: out-of-bounds  # proof: index
                # ^ fix: y[r + i] = x[min(r + i + 2, n - 1)]
