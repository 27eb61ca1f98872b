"""A loop around phases turns as often as a value says that each worker has for itself."""

from __future__ import annotations

import taskc as tc
from taskc import i32, spatial


@tc.kernel(workers=8)
def kernel(x: i32[8], y: tc.inout[i32[8]]):
    count = i32(3)
    for i in spatial(8):
        count = x[i]  # fix: pass
    for t in range(count):  # proof: may differ between workers
        for i in spatial(8):
            y[i] += x[i] + t.to(i32)
