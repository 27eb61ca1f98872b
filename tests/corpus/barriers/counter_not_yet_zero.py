"""The others count before the first worker has set the counter to zero."""

from __future__ import annotations

import taskc as tc
from taskc import i32


@tc.cuda.kernel(workers=64)
def kernel(x: i32[64], y: tc.out[i32[64]]):
    count = tc.shared(i32[1])
    w = tc.worker()
    if w == 0:
        count[0] = 0
    # fix: tc.sync()
    tc.atomic_add(count[0], x[w])  # expect: race
    tc.sync()
    y[w] = count[0]
