"""The barrier stands between the two stores of what is read."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(a: f32[64], b: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[2, 64])
    w = tc.worker()
    s[0, w] = a[w]
    tc.sync()  # fix: s[1, w] = b[w]
    s[1, w] = b[w]  # fix: tc.sync()
    y[w] = s[0, 63 - w] * s[1, 63 - w]  # expect: race
