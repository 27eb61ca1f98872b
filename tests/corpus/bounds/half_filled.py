"""Only the elements inside the input are put into the buffer, and all of them are read."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[20], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    for i in spatial(32):
        if i < 20:
            s[i] = x[i]
        # fix: else: s[i] = 0.0
    for i in spatial(32):
        y[i] = s[31 - i]  # expect: uninitialized
