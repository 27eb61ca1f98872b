"""The fence stands before the registers of the left operand are set."""

from __future__ import annotations

import taskc as tc
from taskc import bf16, f32, spatial

OWN = spatial(4, 1).repeat(1, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2)


@tc.cuda.kernel(workers=128)
def kernel(a: bf16[64, 64], b: bf16[16, 64], c: tc.out[f32[64, 16]]):
    sb = tc.shared(bf16[16, 64], swizzle=128)
    acc = tc.tile(f32, OWN, 0)
    left = tc.tile(bf16, OWN)
    w = tc.worker()
    for r in range(8):
        sb[r * 2 + w // 64, w % 64] = b[r * 2 + w // 64, w % 64]
    tc.cuda.fence_proxy_async()
    tc.sync()
    for t in range(4):
        tc.cuda.wgmma_wait(0)
        tc.cuda.wgmma_fence()  # fix:
        for i, j in OWN:
            left[i, j] = a[i, t * 16 + j]
        # fix: tc.cuda.wgmma_fence()
        tc.cuda.wgmma(acc, left, sb[:, t * 16 : t * 16 + 16].T)  # expect: missing-fence
        tc.cuda.wgmma_commit()
    tc.cuda.wgmma_wait(0)
    for i, j in OWN:
        c[i, j] = acc[i, j]
