"""Blocks start 28 elements apart and have 32 each: four belong to two of them."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[112], y: tc.inout[f32[112]]):
    for r in tc.tiles(112, by=28):  # fix: for r in tc.tiles(112, by=32):
        for i in spatial(32):
            if r + i < 112:
                y[r + i] = 2 * x[r + i]  # expect: race  # proof: block
