"""Vectors of four floats, an element of each at a time."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[4, 32], y: tc.out[f32[4, 32]]):
    s = tc.shared(f32[32, 4])  # fix: s = tc.shared(f32[32, 5])
    w = tc.worker()
    for t in range(4):
        s[w, t] = x[t, w]  # expect: bank-conflict 4
    for t in range(4):
        y[t, w] = s[w, t]  # expect: bank-conflict 4
