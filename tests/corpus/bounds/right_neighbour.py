"""A difference with the right neighbour goes one too far at the end."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    for i in spatial(64):
        if i < 64:  # fix: if i < 63:
            y[i] = x[i + 1] - x[i]  # expect: out-of-bounds  # proof: index
        else:
            y[i] = 0.0
