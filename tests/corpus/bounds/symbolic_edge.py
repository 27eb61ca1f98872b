"""A size that isn't known to be a multiple of the tile is used as if it were."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial

n = tc.dim("n", multiple=16, example=48)  # fix: n = tc.dim("n", multiple=32, example=96)


@tc.kernel(workers=32)
def kernel(x: f32[n], y: tc.out[f32[n]]):
    for r in tc.tiles(n, by=32):
        for i in spatial(32):
            y[r + i] = x[r + i]  # expect: out-of-bounds  # proof: index
