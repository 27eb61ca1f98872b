"""The sum of a row is stored by each of the blocks that share the row."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=16)
def kernel(x: f32[16, 64], y: tc.out[f32[16]]):
    for row, _ in tc.tiles((16, 64), by=(16, 16)):
        # ^ fix: for row, _ in tc.tiles((16, 64), by=(16, 64)):
        for i in spatial(16):
            total = f32(0)
            for q in range(64):
                total += x[row + i, q]
            y[row + i] = total  # expect: written-twice  # expect: race  # proof: stored
