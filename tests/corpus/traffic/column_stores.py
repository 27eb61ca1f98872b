"""A transpose that reads rows and writes columns."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64, 64], y: tc.out[f32[64, 64]]):
    w = tc.worker()
    for t in range(64):
        y[w, t] = x[t, w]  # expect: uncoalesced  # fix: y[t, w] = x[t, w]
