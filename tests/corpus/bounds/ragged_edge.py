"""The last tile reaches over the end, and nothing masks it."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[100], y: tc.out[f32[100]]):
    for r in tc.tiles(100, by=32):
        for i in spatial(32):
            if r + i < 128:  # fix: if r + i < 100:
                y[r + i] = x[r + i]  # expect: out-of-bounds  # proof: index
