"""Two groups are under way, and the wait leaves the newer one out, whose elements are read."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(a: f32[32], b: f32[32], y: tc.out[f32[32]]):
    sa = tc.shared(f32[32])
    sb = tc.shared(f32[32])
    w = tc.worker()
    tc.cuda.cp_async(sa[w], a[w], 1, True)
    tc.cuda.cp_async_commit()
    tc.cuda.cp_async(sb[w], b[w], 1, True)
    tc.cuda.cp_async_commit()
    tc.cuda.cp_async_wait(1)  # fix: tc.cuda.cp_async_wait(0)
    y[w] = sa[w] + sb[w]  # expect: unwaited-copy
