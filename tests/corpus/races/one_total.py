"""All workers add to one element of shared memory."""

from __future__ import annotations

import taskc as tc
from taskc import i32, spatial


@tc.kernel(workers=32)
def kernel(x: i32[32], y: tc.out[i32[1]]):
    total = tc.shared(i32[1])
    for i in spatial(32):
        if i == 0:
            total[0] = 0
    for i in spatial(32):
        total[0] += x[i]  # expect: race  # proof: worker 0  # fix: tc.atomic_add(total[0], x[i])
    for i in spatial(32):
        if i == 0:
            y[0] = total[0]
