"""Rows of four elements lie three apart: the end of one is the start of the next."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=16)
def kernel(x: f32[16, 4], y: tc.out[f32[16, 4]]):
    s = tc.shared(f32[64])
    for i in spatial(16):
        for j in range(4):
            s[3 * i + j] = x[i, j]  # expect: race  # proof: both write
            # ^ fix: s[4 * i + j] = x[i, j]
    for i in spatial(16):
        for j in range(4):
            y[i, j] = s[4 * i + j]  # expect: uninitialized
