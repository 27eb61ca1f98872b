"""A bulk store of 64 elements, of which the block has set 48."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=48)
def kernel(x: f32[48], y: tc.inout[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = x[w]
    tc.cuda.fence_proxy_async()
    tc.sync()
    if w == 0:
        tc.cuda.tma_store(y[0], s[0], 64)  # expect: uninitialized
        # ^ fix: tc.cuda.tma_store(y[0], s[0], 48)
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
