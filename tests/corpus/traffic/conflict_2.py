"""Neighbouring workers read every second word: two of them in each bank that is used."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = x[w]
    s[w + 32] = 0.0
    tc.sync()
    y[w] = s[2 * w]  # expect: bank-conflict 2  # fix: y[w] = s[w]
