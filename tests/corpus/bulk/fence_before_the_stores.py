"""The fence comes before the stores that it is to order."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    tc.cuda.fence_proxy_async()  # fix: s[w] = x[w] + 1.0
    s[w] = x[w] + 1.0  # fix: tc.cuda.fence_proxy_async()
    tc.sync()
    if w == 0:
        tc.cuda.tma_store(y[0], s[0], 32)  # expect: missing-fence
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
