"""A block releases its stage to the other one, which sends to both, before its product has retired."""

from __future__ import annotations

import taskc as tc
from taskc import bf16, f32, spatial

OWN = spatial(4, 1).repeat(1, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2)


@tc.cuda.kernel(workers=160)
def kernel(a: bf16[128, 256], b: bf16[16, 256], c: tc.out[f32[128, 16]]):
    for row, col in tc.tiles((128, 16), by=(64, 16), cluster=(2, 1)):
        sa = tc.shared(bf16[2, 64, 64], swizzle=128)
        sb = tc.shared(bf16[2, 16, 64], swizzle=128)
        full = tc.cuda.barriers(2)
        empty = tc.cuda.barriers(2)
        w = tc.worker()
        rank = tc.cuda.cluster_rank()
        if w == 0:
            for s in range(2):
                tc.cuda.mbarrier_init(full[s], 1)
                tc.cuda.mbarrier_init(empty[s], 2)
        tc.cuda.cluster_sync()
        with tc.cuda.roles():
            with tc.cuda.role("consumer", warps=4):
                acc = tc.tile(f32, OWN)
                tc.cuda.wgmma_fence()
                for t in range(4):
                    s = t % 2
                    tc.cuda.mbarrier_wait(full[s], t // 2 % 2)
                    tc.cuda.wgmma(acc, sa[s, :, :], sb[s, :, :].T, accumulate=t > 0)
                    tc.cuda.wgmma_commit()
                    # fix: tc.cuda.wgmma_wait(0)
                    if w == 0:
                        tc.cuda.mbarrier_arrive(tc.cuda.peer(empty, 1 - rank)[s])
                    tc.cuda.wgmma_wait(0)
                    if w == 0:
                        tc.cuda.mbarrier_arrive(empty[s])
                for i, j in OWN:
                    c[row + i, col + j] = acc[i, j]
            with tc.cuda.role("producer", warps=1):
                if w == 128:
                    for t in range(4):
                        s = t % 2
                        tc.cuda.mbarrier_wait(empty[s], (t // 2 + 1) % 2)
                        tc.cuda.mbarrier_expect(full[s], 80 * 64 * 2)
                        tc.cuda.tma_load(sa[s, 0, 0], a[row, t * 64], full[s], 64, 64)
                        tc.cuda.tma_load_multicast(  # expect: unwaited-product
                            sb[s, 8 * rank, 0], b[col + 8 * rank, t * 64], full[s], 3, 8, 64
                        )
        tc.cuda.cluster_sync()
