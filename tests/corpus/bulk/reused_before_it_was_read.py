"""The buffer is filled again while the bulk store may still read it."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[4, 32], y: tc.out[f32[4, 32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    for t in range(4):
        s[w] = x[t, w] + 1.0  # expect: unwaited-copy
        tc.cuda.fence_proxy_async()
        tc.sync()
        if w == 0:
            tc.cuda.tma_store(y[t, 0], s[0], 1, 32)
            tc.cuda.tma_commit()
            # fix: tc.cuda.tma_wait(0)
        tc.sync()
    if w == 0:
        tc.cuda.tma_wait(0)
