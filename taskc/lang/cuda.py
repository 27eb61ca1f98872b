"""`tc.cuda`: SIMT kernels. They are below phases: their author places the barriers.

    kernel(workers=...)     the decorator
    barriers(n)             n mbarriers in shared memory
    roles(), role(...)      what different warps do beside each other
    cluster_rank(), peer(buffer, rank), cluster_sync()
                            the blocks of a cluster, and their memory
    load_acquire(x[i]), store_release(x[i], v)
                            what one worker sees with what another has stored
    grid_sync()             a barrier of all blocks, which then run beside each other
    ptx(f32, text, x, ...)  a value in the words of PTX
    syncwarp(), syncrole()  barriers among a warp, and among the workers of a role
    wgmma(acc, a, b)        an asynchronous matrix product of warpgroups

and every operation of `taskc.ir.operations`, with underscores for dots: `cp_async`, `shuffle_xor`.
"""

from __future__ import annotations

from taskc.lang.definition import cuda_kernel as kernel
from taskc.lang.names import CUDA_NAMES, INTRINSICS, Intrinsic

__all__ = ["kernel", *CUDA_NAMES]


def __getattr__(name: str) -> Intrinsic:
    if name not in CUDA_NAMES:
        raise AttributeError(f"there is no tc.cuda.{name}")
    return INTRINSICS[f"cuda.{name}"]


def __dir__() -> list[str]:
    return sorted(__all__)
