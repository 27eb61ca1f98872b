"""`tc.cuda`: SIMT kernels. They are below phases: their author places the barriers."""

# As type checkers and editors read it; `pytest tests/test_annotations.py --update-golden` writes it.
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from taskc.lang.definition import cuda_kernel as kernel

__all__ = [
    "kernel",
    "barriers",
    "roles",
    "role",
    "cluster_rank",
    "cluster_sync",
    "peer",
    "grid_sync",
    "ptx",
    "load_acquire",
    "store_release",
    "syncwarp",
    "syncrole",
    "wgmma",
    "cp_async",
    "cp_async_commit",
    "cp_async_wait",
    "mbarrier_init",
    "mbarrier_arrive",
    "mbarrier_expect",
    "mbarrier_wait",
    "tma_load",
    "tma_load_multicast",
    "tma_load_pixels",
    "tma_store",
    "tma_commit",
    "tma_wait",
    "fence_proxy_async",
    "fence_block",
    "fence_gpu",
    "barrier_named",
    "barrier_arrive",
    "cluster_arrive",
    "cluster_wait",
    "shuffle_xor",
    "shuffle_index",
    "shuffle_bits",
    "shuffle_up",
    "shuffle_down",
    "vote_any",
    "vote_all",
    "vote_ballot",
    "setmaxnreg",
    "wgmma_fence",
    "wgmma_commit",
    "wgmma_wait",
    "schedule_hold",
    "schedule_branch",
    "mma_sync_m16n8k16_f16",
    "mma_sync_m16n8k16_bf16",
    "mma_sync_m16n8k8_tf32",
    "mma_sync_m16n8k32_i8",
    "mma_sync_m16n8k32_u8",
    "mma_sync_m16n8k32_u8_i8",
    "mma_sync_m16n8k32_f8e4m3",
    "mma_sync_m16n8k32_f8e5m2",
    "ldmatrix_x4",
    "ldmatrix_x4_trans",
    "ldmatrix_x2",
    "ldmatrix_x2_trans",
    "ldmatrix_x1",
    "ldmatrix_x1_trans",
    "stmatrix_x4",
    "stmatrix_x4_trans",
    "stmatrix_x2",
    "stmatrix_x2_trans",
    "stmatrix_x1",
    "stmatrix_x1_trans",
]

V = TypeVar("V")

def barriers(count: int) -> Any:
    """An array of `count` mbarriers in shared memory."""

def roles() -> AbstractContextManager[None]:
    """A block of roles, which run concurrently; together they have all the workers of the kernel."""

def role(name: str, *, warps: int) -> AbstractContextManager[None]:
    """The code of some warps while the other roles run theirs: `with tc.cuda.role("producer", warps=1):`."""

def cluster_rank() -> Any:
    """The block's number in its cluster, row-major."""

def cluster_sync() -> None:
    """A barrier of all workers of all blocks of the cluster."""

def peer(buffer: V, rank: Any) -> V:
    """The copy of a `tc.shared` or `tc.cuda.barriers` buffer in the block of that rank of the cluster."""

def grid_sync() -> None:
    """A barrier of all workers of all blocks; global stores before it are visible to all of them after it."""

def ptx(dtype: type[V], text: str, *operands: Any, meaning: Callable[..., Any]) -> V:
    """The value that PTX computes from its operands: the result is `%0` in the text, and they are `%1`,
    `%2`, …

    meaning  what the text computes, as a lambda or a `@tc.function` of the operands: the simulator
    evaluates it"""

def load_acquire(element: V) -> V:
    """Loads an element of 4 or 8 bytes; after it the worker sees all stores before this value's
    `store_release`."""

def store_release(element: Any, value: Any) -> None:
    """Stores an element of 4 or 8 bytes after all earlier stores of its worker."""

def syncwarp() -> None:
    """A barrier of a warp, 32 consecutive workers."""

def syncrole() -> None:
    """A barrier of the workers of a role."""

def wgmma(acc: Any, a: Any, b: Any, *, accumulate: Any = True) -> None:
    """Starts a matrix product of a warpgroup: fences, commit and wait are the author's.

    accumulate  where it is false, the product starts from zero"""

def cp_async(place1: Any, place2: Any, constant1: Any, value1: Any, /) -> None:
    """Starts copying n consecutive elements (4, 8 or 16 bytes, aligned) from GLOBAL to SHARED; where the
    predicate is false zeros are written and nothing is read. Complete for this worker after
    cp.async.wait, for others after a barrier behind that.

    By: worker."""

def cp_async_commit() -> None:
    """Closes this worker's current group of copies.

    By: worker."""

def cp_async_wait(constant1: Any, /) -> None:
    """Waits until at most n of this worker's most recent groups are still in flight.

    By: worker."""

def mbarrier_init(place1: Any, constant1: Any, /) -> None:
    """Sets up an mbarrier that completes a phase after n arrivals and all expected bytes. Visible to
    others after a block barrier.

    By: one."""

def mbarrier_arrive(remote1: Any, /) -> None:
    """One arrival; orders the worker's earlier accesses.

    By: worker."""

def mbarrier_expect(remote1: Any, value1: Any, /) -> None:
    """One arrival that also adds n bytes to what the current phase waits for.

    By: worker."""

def mbarrier_wait(place1: Any, value1: Any, /) -> None:
    """Waits until the phase of the given parity has completed (the phase before the first has parity 1).
    Orders the waiter after all arrivals and the bytes they expected.

    By: worker."""

def tma_load(place1: Any, place2: Any, place3: Any, /, *constants: Any) -> None:
    """Starts a bulk copy of a box of the given extents from GLOBAL to SHARED; elements outside the tensor
    arrive as zeros. The whole box's bytes are credited to the mbarrier (third operand).

    By: one."""

def tma_load_multicast(
    place1: Any, place2: Any, place3: Any, value1: Any, /, *constants: Any
) -> None:
    """tma.load, for the blocks of the cluster whose ranks' bits are set in the fourth operand: the box
    arrives at the same place of each one's SHARED memory, and its bytes at each one's mbarrier.

    By: cluster."""

def tma_load_pixels(
    place1: Any, place2: Any, place3: Any, value1: Any, value2: Any, /, *constants: Any
) -> None:
    """tma.load of pixels of GLOBAL images [image, row, column, channel], the ones that a tap meets for
    filters in a row. The second operand is where the first filter begins; then come the tap's row and
    column in the filter. Constants are how many pixels, how many channels of each, the rows and columns
    of filters that an image has, how far apart those are, and how far above and left of an image the
    first one begins.

    By: one."""

def tma_store(place1: Any, place2: Any, /, *constants: Any) -> None:
    """Starts a bulk copy of a box from SHARED (second) to GLOBAL (first); elements outside the tensor are
    dropped. Reads SHARED through the asynchronous proxy.

    By: one."""

def tma_commit() -> None:
    """Closes this worker's current group of bulk stores.

    By: one."""

def tma_wait(constant1: Any, /) -> None:
    """Waits until at most n of this worker's groups of bulk stores still read SHARED memory.

    By: one."""

def fence_proxy_async() -> None:
    """Orders this worker's earlier accesses to SHARED memory before later accesses through the
    asynchronous proxy (TMA, wgmma).

    By: worker."""

def fence_block() -> None:
    """Orders what this worker did before, and has seen, before what it does behind, for the workers of its
    block.

    By: worker."""

def fence_gpu() -> None:
    """fence.block, for the workers of all blocks: it orders their view.

    By: worker."""

def barrier_named(value1: Any, constant1: Any, /) -> None:
    """Barrier number n (1 to 15) among m workers: whole warps, of any role. A pass may compute n from the
    worker.

    By: warp."""

def barrier_arrive(value1: Any, constant1: Any, /) -> None:
    """Comes to barrier number n (1 to 15) among m workers, and goes on; orders the worker's earlier
    accesses before what those do who wait there.

    By: warp."""

def cluster_arrive() -> None:
    """Comes to the barrier of the cluster, with all workers of its blocks, and goes on; orders the
    worker's earlier accesses.

    By: cluster."""

def cluster_wait() -> None:
    """Waits until all have come to the barrier of the cluster at which this worker came last.

    By: cluster."""

def shuffle_xor(value1: Any, value2: Any, /) -> Any:
    """The value of lane (lane ^ n).

    By: warp."""

def shuffle_index(value1: Any, value2: Any, /) -> Any:
    """The value of lane n.

    By: warp."""

def shuffle_bits(value1: Any, value2: Any, value3: Any, /) -> Any:
    """The value of lane (lane & m) | n.

    By: warp."""

def shuffle_up(value1: Any, value2: Any, /) -> Any:
    """The value of lane - n, its own for lane < n.

    By: warp."""

def shuffle_down(value1: Any, value2: Any, /) -> Any:
    """The value of lane + n, its own past the end.

    By: warp."""

def vote_any(value1: Any, /) -> Any:
    """Whether any lane's predicate holds.

    By: warp."""

def vote_all(value1: Any, /) -> Any:
    """Whether every lane's predicate holds.

    By: warp."""

def vote_ballot(value1: Any, /) -> Any:
    """Bit l is lane l's predicate.

    By: warp."""

def setmaxnreg(constant1: Any, /) -> None:
    """Gives up, or waits for, registers: n a worker.

    By: warp."""

def wgmma_fence() -> None:
    """Orders register and SHARED accesses before the following matrix products.

    By: warp."""

def wgmma_commit() -> None:
    """Closes the current group of asynchronous matrix products.

    By: warp."""

def wgmma_wait(constant1: Any, /) -> None:
    """Waits until at most n of the most recent groups of matrix products are still in flight.

    By: warp."""

def schedule_hold() -> None:
    """Does nothing. What stands before it is done, in the machine's code too, before what stands behind
    it.

    By: worker."""

def schedule_branch() -> None:
    """Does nothing. The branch that it stands in is jumped over where it isn't taken.

    By: worker."""

def mma_sync_m16n8k16_f16(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k16_bf16(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k8_tf32(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k32_i8(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k32_u8(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k32_u8_i8(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k32_f8e4m3(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def mma_sync_m16n8k32_f8e5m2(place1: Any, place2: Any, place3: Any, /) -> None:
    """accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a row of
    ir/target.py says which lane holds which element.

    By: warp."""

def ldmatrix_x4(place1: Any, place2: Any, /) -> None:
    """Moves 4 matrices of eight lines of 16 bytes from a SHARED memory (second) to a REGISTER tensor
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def ldmatrix_x4_trans(place1: Any, place2: Any, /) -> None:
    """Moves 4 matrices of eight lines of 16 bytes from a SHARED memory (second) to a REGISTER tensor
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def ldmatrix_x2(place1: Any, place2: Any, /) -> None:
    """Moves 2 matrices of eight lines of 16 bytes from a SHARED memory (second) to a REGISTER tensor
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def ldmatrix_x2_trans(place1: Any, place2: Any, /) -> None:
    """Moves 2 matrices of eight lines of 16 bytes from a SHARED memory (second) to a REGISTER tensor
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def ldmatrix_x1(place1: Any, place2: Any, /) -> None:
    """Moves 1 matrices of eight lines of 16 bytes from a SHARED memory (second) to a REGISTER tensor
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def ldmatrix_x1_trans(place1: Any, place2: Any, /) -> None:
    """Moves 1 matrices of eight lines of 16 bytes from a SHARED memory (second) to a REGISTER tensor
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def stmatrix_x4(place1: Any, place2: Any, /) -> None:
    """Moves 4 matrices of eight lines of 16 bytes from a REGISTER tensor (second) to a SHARED memory
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def stmatrix_x4_trans(place1: Any, place2: Any, /) -> None:
    """Moves 4 matrices of eight lines of 16 bytes from a REGISTER tensor (second) to a SHARED memory
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def stmatrix_x2(place1: Any, place2: Any, /) -> None:
    """Moves 2 matrices of eight lines of 16 bytes from a REGISTER tensor (second) to a SHARED memory
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def stmatrix_x2_trans(place1: Any, place2: Any, /) -> None:
    """Moves 2 matrices of eight lines of 16 bytes from a REGISTER tensor (second) to a SHARED memory
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def stmatrix_x1(place1: Any, place2: Any, /) -> None:
    """Moves 1 matrices of eight lines of 16 bytes from a REGISTER tensor (second) to a SHARED memory
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""

def stmatrix_x1_trans(place1: Any, place2: Any, /) -> None:
    """Moves 1 matrices of eight lines of 16 bytes from a REGISTER tensor (second) to a SHARED memory
    (first). Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane
    8 * i + r line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each
    matrix; a row of ir/target.py says which elements.

    By: warp."""
