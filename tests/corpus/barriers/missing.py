"""A vector is reversed through shared memory, and nobody waits for the others."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = x[w]
    # fix: tc.sync()
    y[w] = s[63 - w]  # expect: race
