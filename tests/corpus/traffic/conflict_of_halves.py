"""Rows of 64 halves are 32 banks long: a column of them is all in one bank."""

from __future__ import annotations

import taskc as tc
from taskc import f16, repeat, spatial


@tc.cuda.kernel(workers=32)
def kernel(x: f16[32, 64], y: tc.out[f16[64, 32]]):
    s = tc.shared(f16[32, 64])  # fix: s = tc.shared(f16[32, 66])
    for i, j in repeat(32, 2) * spatial(1, 32):
        s[i, j] = x[i, j]
    tc.sync()
    for j, i in repeat(64, 1) * spatial(1, 32):
        y[j, i] = s[i, j]  # expect: bank-conflict 32
