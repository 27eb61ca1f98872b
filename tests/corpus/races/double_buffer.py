"""A prefix sum by doubling writes the half that it reads."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=16)
def kernel(x: f32[16], y: tc.out[f32[16]]):
    s = tc.shared(f32[2, 16])
    for i in spatial(16):
        s[0, i] = x[i]
        s[1, i] = x[i]
    for t in range(4):
        for i in spatial(16):
            s[(t + 2) % 2, i] = s[t % 2, i] + s[t % 2, max(i - (1 << t), 0)]  # expect: race
            # ^ proof: reads in the same phase
            # ^ fix: s[(t + 1) % 2, i] = s[t % 2, i] + s[t % 2, max(i - (1 << t), 0)]
    for i in spatial(16):
        y[i] = s[0, i]
