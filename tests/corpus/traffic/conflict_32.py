"""A transpose through a square of 32: a column is all in one bank."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32, 32], y: tc.out[f32[32, 32]]):
    s = tc.shared(f32[32, 32])  # fix: s = tc.shared(f32[32, 33])
    for i, j in repeat(32, 1) * spatial(1, 32):
        s[i, j] = x[i, j]
    tc.sync()
    for i, j in repeat(32, 1) * spatial(1, 32):
        y[i, j] = s[j, i]  # expect: bank-conflict 32
