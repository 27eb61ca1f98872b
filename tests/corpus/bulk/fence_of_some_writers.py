"""Half of the workers that wrote what is stored fence; the others' elements may not have come yet."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    w = tc.worker()
    s[w] = tc.exp(x[w])
    tc.sync()
    if w < 32:  # fix: if w < 64:
        tc.cuda.fence_proxy_async()
    tc.sync()
    if w == 0:
        tc.cuda.tma_store(y[0], s[0], 64)  # expect: missing-fence
        tc.cuda.tma_commit()
        tc.cuda.tma_wait(0)
