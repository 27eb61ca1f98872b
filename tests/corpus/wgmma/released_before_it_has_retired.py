"""A stage is released when the product that reads it was issued, and not when it has retired."""

from __future__ import annotations

import taskc as tc
from taskc import bf16, f32, spatial

OWN = spatial(4, 1).repeat(1, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2)


@tc.cuda.kernel(workers=160)
def kernel(a: bf16[64, 256], b: bf16[16, 256], c: tc.out[f32[64, 16]]):
    sa = tc.shared(bf16[2, 64, 64], swizzle=128)
    sb = tc.shared(bf16[2, 16, 64], swizzle=128)
    full = tc.cuda.barriers(2)
    empty = tc.cuda.barriers(2)
    w = tc.worker()
    if w == 0:
        for s in range(2):
            tc.cuda.mbarrier_init(full[s], 1)
            tc.cuda.mbarrier_init(empty[s], 1)
    tc.sync()
    with tc.cuda.roles():
        with tc.cuda.role("consumer", warps=4):
            acc = tc.tile(f32, OWN)
            tc.cuda.wgmma_fence()
            for t in range(4):
                tc.cuda.mbarrier_wait(full[t % 2], t // 2 % 2)
                tc.cuda.wgmma(acc, sa[t % 2, :, :], sb[t % 2, :, :].T, accumulate=t > 0)
                tc.cuda.wgmma_commit()
                # fix: tc.cuda.wgmma_wait(0)
                if w == 0:
                    tc.cuda.mbarrier_arrive(empty[t % 2])
            tc.cuda.wgmma_wait(0)
            for i, j in OWN:
                c[i, j] = acc[i, j]
        with tc.cuda.role("producer", warps=1):
            if w == 128:
                for t in range(4):
                    s = t % 2
                    tc.cuda.mbarrier_wait(empty[s], (t // 2 + 1) % 2)
                    tc.cuda.mbarrier_expect(full[s], 80 * 64 * 2)
                    tc.cuda.tma_load(sa[s, 0, 0], a[0, t * 64], full[s], 64, 64)
                    # ^ expect: unwaited-product
                    tc.cuda.tma_load(sb[s, 0, 0], b[0, t * 64], full[s], 16, 64)
                    # ^ expect: unwaited-product
