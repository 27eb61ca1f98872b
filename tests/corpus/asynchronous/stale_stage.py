"""The slot of the step before is read: its data are a step old, and the next copies go there."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[8, 64], y: tc.out[f32[8, 64]]):
    s = tc.shared(f32[3, 64])
    w = tc.worker()
    for t in range(2):
        tc.cuda.cp_async(s[t, w], x[t, w], 1, True)
        tc.cuda.cp_async_commit()
    for t in range(8):
        tc.cuda.cp_async_wait(1)
        tc.sync()
        if t + 2 < 8:
            tc.cuda.cp_async(s[(t + 2) % 3, w], x[t + 2, w], 1, True)
        tc.cuda.cp_async_commit()
        y[t, w] = s[(t + 2) % 3, 63 - w]  # expect: unwaited-copy  # fix: y[t, w] = s[t % 3, 63 - w]
