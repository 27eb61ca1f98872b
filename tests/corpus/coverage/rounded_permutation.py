"""Neighbours are to be swapped, but both of a pair go to the same place."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):  # expect: not-written
    for i in spatial(32):
        y[i // 2 * 2] = x[i]  # expect: written-twice  # expect: race  # proof: stored twice
        # ^ fix: y[i // 2 * 2 + (1 - i % 2)] = x[i]
