"""Everybody fences, but the bulk store is started before the other warps have written."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = -x[w]
    tc.cuda.fence_proxy_async()
    # fix: tc.sync()
    if w == 63:
        tc.cuda.tma_store(y[0], s[0], 64)  # expect: race  # expect: missing-fence
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
