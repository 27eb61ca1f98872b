"""The accumulator of a matrix product is never set to zero."""

from __future__ import annotations

import taskc as tc
from taskc import f32, repeat, spatial

own = spatial(4, 8) * repeat(2, 1)


@tc.kernel(workers=32)
def kernel(a: f32[8, 16], b: f32[16, 8], c: tc.out[f32[8, 8]]):
    acc = tc.tile(f32, own)  # fix: acc = tc.tile(f32, own, 0)
    for q in range(16):
        for i, j in own:
            acc[i, j] += a[i, q] * b[q, j]  # expect: uninitialized
    tc.store(c, acc)
