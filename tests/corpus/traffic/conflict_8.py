"""Columns of an eight-column tile."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=256)
def kernel(x: f32[256], y: tc.out[f32[256]]):
    s = tc.shared(f32[32, 8])  # fix: s = tc.shared(f32[32, 9])
    for k in spatial(256):
        s[k % 32, k // 32] = x[k]  # expect: bank-conflict 8
    tc.sync()
    for k in spatial(256):
        y[k] = s[k % 32, k // 32]  # expect: bank-conflict 8
