"""A tile is filled by the workers of another mapping."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial

own = spatial(4, 8) * repeat(2, 2)
other = repeat(2, 2) * spatial(4, 8)


@tc.kernel(workers=32)
def kernel(x: f32[8, 16], y: tc.out[f32[8, 16]]):
    t = tc.tile(f32, own, 0)
    for i, j in other:  # fix: for i, j in own:
        t[i, j] = x[i, j]  # expect: not-owned  # proof: own
    tc.store(y, t)
