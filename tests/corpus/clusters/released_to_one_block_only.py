"""A slot that both blocks read is free for the next multicast when one of them has read it."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[64], y: tc.out[f32[2, 64]]):
    for i in tc.tiles(2, by=1, cluster=2):
        s = tc.shared(f32[32])
        full = tc.cuda.barriers(1)
        empty = tc.cuda.barriers(1)
        w = tc.worker()
        rank = tc.cuda.cluster_rank()
        if w == 0:
            tc.cuda.mbarrier_init(full[0], 1)
            tc.cuda.mbarrier_init(empty[0], 32)  # fix: tc.cuda.mbarrier_init(empty[0], 64)
        tc.cuda.cluster_sync()
        for t in range(2):
            if rank == 0:
                tc.cuda.mbarrier_wait(empty[0], (t + 1) % 2)
            if w == 0:
                tc.cuda.mbarrier_expect(full[0], 128)
                if rank == 0:
                    tc.cuda.tma_load_multicast(s[0], x[32 * t], full[0], 3, 32)
                    # ^ expect: unwaited-copy
            tc.cuda.mbarrier_wait(full[0], t)
            y[i, 32 * t + w] = s[31 - w]  # expect: unwaited-copy
            if rank == 0:
                tc.cuda.mbarrier_arrive(empty[0])
            if rank == 1:
                tc.cuda.syncwarp()  # fix: tc.cuda.mbarrier_arrive(tc.cuda.peer(empty, 0)[0])
        tc.cuda.cluster_sync()
