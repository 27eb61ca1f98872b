"""The bulk stores belong to no group, so that there is nothing to wait for."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[2, 64], y: tc.out[f32[2, 64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    for t in range(2):
        s[w] = x[t, 63 - w]  # expect: unwaited-copy
        tc.cuda.fence_proxy_async()
        tc.sync()
        if w == 0:
            tc.cuda.tma_store(y[t, 0], s[0], 1, 64)
            # fix: tc.cuda.tma_commit()
            tc.cuda.tma_wait(0)
        tc.sync()
    if w == 0:
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
