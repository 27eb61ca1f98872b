"""The mapping covers 96 columns of a tile of 128."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial

own = repeat(1, 3) * spatial(2, 32)  # fix: own = repeat(1, 4) * spatial(2, 32)


@tc.kernel(workers=64)
def kernel(x: f32[8, 128], y: tc.out[f32[8, 128]]):  # expect: not-written
    for r in tc.tiles(8, by=2):
        for i, j in own:
            y[r + i, j] = x[r + i, j]  # proof: never stored
