"""A maximum is compared and stored in two steps."""

from __future__ import annotations

import taskc as tc
from taskc import i32, spatial


@tc.kernel(workers=32)
def kernel(x: i32[32], best: tc.inout[i32[1]]):
    for i in spatial(32):
        if x[i] > best[0]:  # fix: if True:
            best[0] = x[i]  # expect: race  # proof: can't prove
            # ^ fix: tc.atomic_max(best[0], x[i])
