"""A mean over a group that may be empty."""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import i32, spatial


def arguments(random):
    return np.arange(16, dtype=np.int32), np.arange(16, dtype=np.int32) % 4


@tc.kernel(workers=16, example=arguments)
def kernel(total: i32[16], count: i32[16], y: tc.out[i32[16]]):
    for i in spatial(16):
        y[i] = total[i] // count[i]  # expect: division-by-zero
        # ^ fix: y[i] = total[i] // max(count[i], 1)
