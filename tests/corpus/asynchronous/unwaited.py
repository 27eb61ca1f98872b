"""A copy is read without waiting for it."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    tc.cuda.cp_async(s[w], x[w], 1, True)
    tc.cuda.cp_async_commit()
    # fix: tc.cuda.cp_async_wait(0)
    y[w] = s[w]  # expect: unwaited-copy
