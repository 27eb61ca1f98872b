"""The next turn overwrites the buffer that slower workers still read."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=64)
def kernel(x: f32[4, 64], y: tc.out[f32[4, 64]]):
    s = tc.shared(f32[8, 8])
    for t in range(4):
        for i, j in spatial(8, 8):
            s[i, j] = x[t, i * 8 + j]  # expect: race
        tc.sync()
        for i, j in spatial(8, 8):
            y[t, i * 8 + j] = s[j, i]
        # fix: tc.sync()
