"""Two workers that count the same value overwrite each other's sum."""

from __future__ import annotations

import taskc as tc
from taskc import i32, spatial


@tc.kernel(workers=64)
def kernel(x: i32[64], bins: tc.inout[i32[10]]):
    for i in spatial(64):
        value = x[i]
        if 0 <= value < 10:
            bins[value] += 1  # expect: race  # proof: can't prove
            # ^ fix: tc.atomic_add(bins[value], 1)
