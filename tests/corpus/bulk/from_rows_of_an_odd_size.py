"""The input's rows are 68 bytes long, and a bulk copy takes rows that begin at multiples of 16."""

from __future__ import annotations

import taskc as tc
from taskc import f32

COLUMNS = 17  # fix: COLUMNS = 20


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32, COLUMNS], y: tc.out[f32[32]]):
    s = tc.shared(f32[32, 4])
    full = tc.cuda.barriers(1)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 512)
        tc.cuda.tma_load(s[0, 0], x[0, 0], full[0], 32, 4)  # expect: misaligned
    tc.cuda.mbarrier_wait(full[0], 0)
    y[w] = s[w, 3]
