"""Two workers start bulk stores that share half of their elements."""

from __future__ import annotations

import taskc as tc
from taskc import f32

SECOND = 32  # fix: SECOND = 64


@tc.cuda.kernel(workers=32)
def kernel(x: f32[64], y: tc.inout[f32[128]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = x[w]
    s[w + 32] = x[w + 32]
    tc.cuda.fence_proxy_async()
    tc.sync()
    if w == 0:
        tc.cuda.tma_store(y[0], s[0], 64)
    if w == 1:
        tc.cuda.tma_store(y[SECOND], s[0], 64)  # expect: race
    if w < 2:
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
