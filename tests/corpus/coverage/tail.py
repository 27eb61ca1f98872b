"""The tiles end with the last whole one: the tail is never stored."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=32)
def kernel(x: f32[100], y: tc.out[f32[100]]):  # expect: not-written
    for r in tc.tiles(100 // 32 * 32, by=32):  # fix: for r in tc.tiles(100, by=32):
        for i in spatial(32):
            if r + i < 100:
                y[r + i] = x[r + i] + 1.0  # proof: never stored
