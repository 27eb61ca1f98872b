"""A box of three columns: its rows aren't whole pieces of 16 bytes."""

from __future__ import annotations

import taskc as tc
from taskc import f32

COLUMNS = 3  # fix: COLUMNS = 4


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32, 16], y: tc.out[f32[32]]):
    s = tc.shared(f32[32, COLUMNS])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 128 * COLUMNS)
        tc.cuda.tma_load(s[0, 0], x[0, 0], full[0], 32, COLUMNS)  # expect: misaligned
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[w, 2]
