"""All eight workers of a row store its sum."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[4, 8], y: tc.out[f32[4]]):
    for i, j in spatial(4, 8):
        total = f32(0)
        for q in range(8):
            total += x[i, q]
        if j < 8:  # fix: if j == 0:
            y[i] = total  # expect: written-twice  # expect: race  # proof: stored twice
