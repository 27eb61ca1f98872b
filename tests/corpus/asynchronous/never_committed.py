"""The copies belong to no group yet, so the wait isn't for them."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    tc.cuda.cp_async(s[w], x[w], 1, True)
    # fix: tc.cuda.cp_async_commit()
    tc.cuda.cp_async_wait(0)
    tc.sync()
    y[w] = s[31 - w]  # expect: unwaited-copy
