"""A block-wide remainder whose divisor is zero in one turn of the loop."""

from __future__ import annotations

import taskc as tc
from taskc import i64, spatial


@tc.kernel(workers=4)
def kernel(y: tc.out[i64[4, 8]]):
    for t in range(8):
        rest = 100 % (t - 3)  # expect: division-by-zero  # fix: rest = 100 % (t + 3)
        for i in spatial(4):
            y[i, t] = rest + i
