"""A row is summed in the phase that loads it: the other workers' elements may not be there."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial

own = spatial(4, 8)


@tc.kernel(workers=32)
def kernel(x: f32[4, 8], y: tc.out[f32[4, 8]]):
    s = tc.shared(f32[4, 8])
    for i, j in own:
        s[i, j] = 0.0
    for i, j in own:
        s[i, j] = x[i, j]
        # fix-out: for i, j in own:
        total = f32(0)
        for q in range(8):
            total += s[i, q]  # expect: race  # proof: in the same phase
        y[i, j] = total
