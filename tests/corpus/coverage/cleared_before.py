"""The output is cleared first, so every element is stored twice."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial

own = repeat(4) * spatial(32)


@tc.kernel(workers=32)
def kernel(x: f32[128], y: tc.out[f32[128]]):
    for i in own:
        y[i] = 0.0  # fix: pass
    for i in own:
        y[i] = max(x[i], 0.0)  # expect: written-twice  # proof: stored
