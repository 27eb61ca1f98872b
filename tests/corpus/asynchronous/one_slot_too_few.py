"""A ring of two slots with two steps under way: the copy goes where the step is that is read."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[8, 64], y: tc.out[f32[8, 64]]):
    slots = tc.static(2)  # fix: slots = tc.static(3)
    s = tc.shared(f32[slots, 64])
    w = tc.worker()
    for t in range(2):
        tc.cuda.cp_async(s[t, w], x[t, w], 1, True)
        tc.cuda.cp_async_commit()
    for t in range(8):
        tc.cuda.cp_async_wait(1)
        tc.sync()
        if t + 2 < 8:
            tc.cuda.cp_async(s[(t + 2) % slots, w], x[t + 2, w], 1, True)
        tc.cuda.cp_async_commit()
        y[t, w] = s[t % slots, 63 - w]  # expect: unwaited-copy
