"""A shuffle takes the value of a lane that has not come along."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.inout[f32[32]]):
    w = tc.worker()
    value = x[w]
    if w < 16:  # fix: if w < 32:
        other = tc.cuda.shuffle_xor(value, 16)  # expect: inactive-lane
        y[w] = value + other
