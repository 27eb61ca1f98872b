"""The left neighbour of the first column is before the row."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=64)
def kernel(x: f32[8, 8], y: tc.out[f32[8, 8]]):
    for i, j in spatial(8, 8):
        y[i, j] = x[i, j] + x[i, j - 1]  # expect: out-of-bounds  # proof: index
        # ^ fix: y[i, j] = x[i, j] + x[i, max(j - 1, 0)]
