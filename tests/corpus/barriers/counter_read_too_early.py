"""One warp reads the counter while another one still counts: atomics order nothing."""

from __future__ import annotations

import taskc as tc
from taskc import i32


@tc.cuda.kernel(workers=64)
def kernel(x: i32[64], y: tc.out[i32[64]]):
    count = tc.shared(i32[1])
    w = tc.worker()
    if w == 0:
        count[0] = 0
    tc.sync()
    if x[w] > 4:
        tc.atomic_add(count[0], 1)
    # fix: tc.sync()
    y[w] = count[0]  # expect: race
