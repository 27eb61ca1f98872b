"""The counters of a block are written out while other warps still count."""

from __future__ import annotations

import taskc as tc
from taskc import i32


@tc.cuda.kernel(workers=64)
def kernel(x: i32[256], y: tc.inout[i32[10]]):
    for r in tc.tiles(256, by=128):
        bins = tc.shared(i32[10])
        w = tc.worker()
        if w < 10:
            bins[w] = 0
        tc.sync()
        for t in range(2):
            tc.atomic_add(bins[x[r + 64 * t + w]], 1)
        # fix: tc.sync()
        if w < 10:
            tc.atomic_add(y[w], bins[w])  # expect: race
