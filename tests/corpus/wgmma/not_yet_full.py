"""The product does not wait until its operands have arrived."""

from __future__ import annotations

import taskc as tc
from taskc import bf16, f32, spatial

OWN = spatial(4, 1).repeat(1, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2)


@tc.cuda.kernel(workers=128)
def kernel(a: bf16[64, 64], b: bf16[16, 64], c: tc.out[f32[64, 16]]):
    sa = tc.shared(bf16[64, 64], swizzle=128)
    sb = tc.shared(bf16[16, 64], swizzle=128)
    full = tc.cuda.barriers(1)
    acc = tc.tile(f32, OWN)
    w = tc.worker()
    if w == 0:
        tc.cuda.mbarrier_init(full[0], 1)
    tc.sync()
    if w == 0:
        tc.cuda.mbarrier_expect(full[0], 80 * 64 * 2)
        tc.cuda.tma_load(sa[0, 0], a[0, 0], full[0], 64, 64)
        tc.cuda.tma_load(sb[0, 0], b[0, 0], full[0], 16, 64)
    # fix: tc.cuda.mbarrier_wait(full[0], 0)
    tc.sync()
    tc.cuda.wgmma_fence()
    tc.cuda.wgmma(acc, sa, sb.T, accumulate=False)  # expect: unwaited-copy
    tc.cuda.wgmma_commit()
    tc.cuda.wgmma_wait(0)
    for i, j in OWN:
        c[i, j] = acc[i, j]
    tc.cuda.mbarrier_wait(full[0], 0)
