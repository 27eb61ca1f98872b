"""A tile with a halo on both sides is put into a buffer that has room for one."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial

own = repeat(2) * spatial(32)


@tc.kernel(workers=32)
def kernel(x: f32[66], y: tc.out[f32[64]]):
    for r in tc.tiles(64, by=32):
        s = tc.shared(f32[33])  # fix: s = tc.shared(f32[34])
        for i in own:
            if i < 34:
                s[i] = x[r + i]  # expect: out-of-bounds  # proof: index
        for i in spatial(32):
            y[r + i] = s[i] + s[i + 1] + s[i + 2]  # expect: out-of-bounds  # proof: index
