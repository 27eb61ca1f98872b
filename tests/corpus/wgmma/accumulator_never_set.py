"""The first product adds to an accumulator that nothing has set."""

from __future__ import annotations

import taskc as tc
from taskc import bf16, f32, spatial

OWN = spatial(4, 1).repeat(1, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2)


@tc.cuda.kernel(workers=128)
def kernel(a: bf16[64, 64], b: bf16[16, 64], c: tc.out[f32[64, 16]]):
    sa = tc.shared(bf16[64, 64], swizzle=128)
    sb = tc.shared(bf16[16, 64], swizzle=128)
    acc = tc.tile(f32, OWN)
    w = tc.worker()
    for r in range(32):
        sa[r * 2 + w // 64, w % 64] = a[r * 2 + w // 64, w % 64]
    for r in range(8):
        sb[r * 2 + w // 64, w % 64] = b[r * 2 + w // 64, w % 64]
    tc.cuda.fence_proxy_async()
    tc.sync()
    tc.cuda.wgmma_fence()
    tc.cuda.wgmma(acc, sa, sb.T)  # expect: uninitialized
    # ^ fix: tc.cuda.wgmma(acc, sa, sb.T, accumulate=False)
    tc.cuda.wgmma_commit()
    tc.cuda.wgmma_wait(0)
    for i, j in OWN:
        c[i, j] = acc[i, j]
