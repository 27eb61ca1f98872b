"""A row of 24 columns is copied 16 at a time, and the rest of it forgotten."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.kernel(workers=32)
def kernel(x: f32[12, 24], y: tc.out[f32[12, 24]]):  # expect: not-written
    for r in tc.tiles(12, by=4):
        for p in range(0, 16, 16):  # fix: for p in range(0, 24, 16):
            block = tc.load(x[r : r + 4, p : p + 16])
            tc.store(y[r : r + 4, p : p + 16], block)  # proof: never stored
