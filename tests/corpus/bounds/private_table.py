"""A private array of four counters is indexed by a remainder of five."""

from __future__ import annotations

import taskc as tc
from taskc import i32, spatial


@tc.kernel(workers=8)
def kernel(x: i32[8, 16], y: tc.out[i32[8, 4]]):
    for i in spatial(8):
        counts = tc.local(i32[4], 0)
        for q in range(16):
            counts[x[i, q] % 5] += 1  # expect: out-of-bounds  # proof: index
            # ^ fix: counts[x[i, q] % 4] += 1
        for q in range(4):
            y[i, q] = counts[q]
