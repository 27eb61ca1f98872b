"""An embedding is looked up for a token that the table may not have."""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, i32, spatial


def arguments(random):
    return random.standard_normal((10, 8), np.float32), np.array([3, 9, -1, 10], np.int32)


@tc.kernel(workers=32, example=arguments)
def kernel(table: f32[10, 8], tokens: i32[4], y: tc.out[f32[4, 8]]):
    for i, j in spatial(4, 8):
        token = tokens[i]
        if 0 <= token <= 10:  # fix: if 0 <= token < 10:
            y[i, j] = table[token, j]  # expect: out-of-bounds  # proof: index
        else:
            y[i, j] = 0.0
