"""A warp folds 24 values: the loop that loads them leaves a quarter of its lanes behind."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[24], y: tc.out[f32[1]]):
    w = tc.worker()
    total = f32(0)
    if w < 24:
        total = x[w]
        for t in range(5):  # fix: for t in range(0):
            total += tc.cuda.shuffle_down(total, 16 >> t)  # expect: inactive-lane
    # fix: for t in range(5): total += tc.cuda.shuffle_down(total, 16 >> t)
    if w == 0:
        y[0] = total
