"""Another worker than the one that started the bulk store waits for it, which is no wait at all."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[4, 64], y: tc.out[f32[4, 64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    for t in range(4):
        s[w] = x[t, w] + 1.0  # expect: unwaited-copy
        tc.cuda.fence_proxy_async()
        tc.sync()
        if w == 0:
            tc.cuda.tma_store(y[t, 0], s[0], 1, 64)
            tc.cuda.tma_commit()
        if w == 32:  # fix: if w == 0:
            tc.cuda.tma_wait(0)
        tc.sync()
    if w == 0:
        tc.cuda.tma_wait(0)
