"""A worker reads the next column out of registers that its neighbour has."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial

own = spatial(4, 8) * repeat(1, 2)


@tc.kernel(workers=32)
def kernel(x: f32[4, 16], y: tc.out[f32[4, 16]]):
    t = tc.tile(f32, own)
    for i, j in own:
        t[i, j] = x[i, j]
    for i, j in own:
        y[i, j] = t[i, (j + 1) % 16] - t[i, j]  # expect: not-owned  # proof: own
        # ^ fix: y[i, j] = t[i, j // 2 * 2 + (j + 1) % 2] - t[i, j]
