"""Columns of a tile of sixteen."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[32, 16], y: tc.out[f32[16, 32]]):
    s = tc.shared(f32[32, 16].laid(tc.repeat(32, 16)))
    # ^ fix: s = tc.shared(f32[32, 16].laid(tc.repeat(32, 17)))
    for t in range(8):
        for i, j in spatial(4, 16):
            s[4 * t + i, j] = x[4 * t + i, j]  # fix: s[4 * t + i, j] = x[4 * t + i, j]
    tc.sync()
    for t in range(8):
        for j, i in spatial(2, 32):
            y[2 * t + j, i] = s[i, 2 * t + j]  # expect: bank-conflict 16
