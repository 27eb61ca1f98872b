"""Each lane takes its neighbour's value, in a branch that the last one's neighbour doesn't take."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    w = tc.worker()
    value = x[w]
    following = value
    if w < 20:  # fix: if w < 32:
        following = tc.cuda.shuffle_down(value, 1)  # expect: inactive-lane
    y[w] = following
