"""The guard leaves out the diagonal."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=64)
def kernel(x: f32[8, 8], y: tc.out[f32[8, 8]]):  # expect: not-written
    for i, j in spatial(8, 8):
        if i < j:
            y[i, j] = x[i, j]
        elif i > j:  # fix: else:
            y[i, j] = -x[i, j]  # proof: never stored
