"""A bulk store brings elements that the workers store themselves, too."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.inout[f32[64]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    s[w] = x[w]
    tc.cuda.fence_proxy_async()
    tc.sync()
    if w == 0:
        tc.cuda.tma_store(y[0], s[0], 32)
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
    y[w] = 2 * x[w]  # expect: race  # fix: y[w + 32] = 2 * x[w]
