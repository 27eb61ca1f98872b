"""A warp reads columns of a tile of sixteen: two banks have all of one."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32, 16], y: tc.out[f32[16, 32]]):
    pitch = tc.static(repeat(32, 16))  # fix: pitch = tc.static(repeat(32, 17))
    s = tc.shared(f32[32, 16].laid(pitch))
    for i, j in spatial(2, 1) * repeat(16, 1) * spatial(1, 16):
        s[i, j] = x[i, j]  # expect: bank-conflict 2
    tc.sync()
    for j, i in repeat(16, 1) * spatial(1, 32):
        y[j, i] = s[i, j]  # expect: bank-conflict 16
