"""Each turn allocates the buffer anew, at the same place, which slower workers still read."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[4, 64], y: tc.out[f32[4, 64]]):
    w = tc.worker()
    for t in range(4):
        s = tc.shared(f32[64])
        # fix: tc.sync()
        s[w] = x[t, w]  # expect: race
        tc.sync()
        y[t, w] = s[63 - w]
