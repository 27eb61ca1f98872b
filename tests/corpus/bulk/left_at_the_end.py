"""The block ends while its bulk stores still read shared memory."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):
    s = tc.shared(f32[32])
    w = tc.worker()
    s[w] = tc.sqrt(abs(x[w]))
    tc.cuda.fence_proxy_async()
    tc.sync()
    if w == 0:
        tc.cuda.tma_store(y[0], s[0], 32)  # expect: unwaited-copy
        tc.cuda.tma_commit()
        # fix: tc.cuda.tma_wait(0)
