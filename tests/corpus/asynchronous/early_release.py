"""The copy into a slot is issued before the others have read what is in it."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[8, 64], y: tc.out[f32[8, 64]]):
    s = tc.shared(f32[2, 64])
    w = tc.worker()
    tc.cuda.cp_async(s[0, w], x[0, w], 1, True)
    tc.cuda.cp_async_commit()
    for t in range(8):
        tc.cuda.cp_async_wait(0)
        # fix: tc.sync()
        if t + 1 < 8:
            tc.cuda.cp_async(s[(t + 1) % 2, w], x[t + 1, w], 1, True)  # expect: race
        tc.cuda.cp_async_commit()
        tc.sync()  # fix:
        y[t, w] = s[t % 2, 63 - w]
