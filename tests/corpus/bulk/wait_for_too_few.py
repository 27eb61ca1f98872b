"""With two buffers one group may be under way, and the wait allows two."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[6, 64], y: tc.out[f32[6, 64]]):
    s = tc.shared(f32[2, 64])
    w = tc.worker()
    for t in range(6):
        if w == 0:
            tc.cuda.tma_wait(2)  # fix: tc.cuda.tma_wait(1)
        tc.sync()
        s[t % 2, w] = 2 * x[t, w]  # expect: unwaited-copy
        tc.cuda.fence_proxy_async()
        tc.sync()
        if w == 0:
            tc.cuda.tma_store(y[t, 0], s[t % 2, 0], 1, 64)
            tc.cuda.tma_commit()
    if w == 0:
        tc.cuda.tma_wait(0)
