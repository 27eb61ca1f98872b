"""Elements outside the input are set to a value while the copy may still bring zeros."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[20], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    tc.cuda.cp_async(s[w], x[min(w, 19)], 1, w < 20)
    tc.cuda.cp_async_commit()
    # fix: tc.cuda.cp_async_wait(0)
    if w >= 20:
        s[w] = -1.0  # expect: unwaited-copy
    tc.cuda.cp_async_wait(0)
    y[w] = s[w]
