"""A private value is set in one branch and used after both."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    for i in spatial(32):
        root = tc.local(f32[1])
        if x[i] > 0.0:
            root[0] = tc.sqrt(x[i])
        # fix: else: root[0] = 0.0
        y[i] = root[0]  # expect: uninitialized
