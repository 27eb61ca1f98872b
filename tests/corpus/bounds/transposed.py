"""The indices of a matrix that isn't square are exchanged."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[8, 4], y: tc.out[f32[4, 8]]):
    for i, j in spatial(8, 4):
        y[j, i] = x[j, i]  # expect: out-of-bounds  # proof: index  # fix: y[j, i] = x[i, j]
