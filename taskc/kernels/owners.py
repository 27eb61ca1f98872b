"""Who has which elements of a block; first of all where that is many workers around a memory of their own.

A worker takes as many neighbouring elements as one access may have, the workers of a warp take neighbours of
these, and the next access of a worker lies behind all of its block's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, prod

from taskc import DType, Machine, Mapping, repeat, spatial
from taskc.kernels.machine_facts import GPU
from taskc.kernels.signatures import Extent


def width(extent: Extent, *dtypes: DType) -> int:
    """How many neighbours an access has in rows of so many elements: each row starts at such an address."""
    return gcd(divisor(extent), *[GPU.access_bytes // dtype.nbytes for dtype in dtypes])


def divisor(extent: Extent) -> int:
    """A known divisor of an extent; 0 for the extent 0, which all numbers divide."""
    return extent if isinstance(extent, int) else getattr(extent, "multiple", 1)


def power(n: int) -> int:
    """The smallest power of two from n on."""
    return 1 << max(0, n - 1).bit_length()


class VectorTile:
    """The common part of plans for processors whose tiles are `rows` x `vectors` vectors of `lanes` workers."""

    __slots__ = ()
    rows: int
    vectors: int
    lanes: int

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes

    @property
    def own(self) -> Mapping:
        return repeat(self.rows, self.vectors) * spatial(1, self.lanes)


def along(workers: int, accesses: int, wide: int) -> Mapping:
    """A part of a row that so many workers walk along, side by side."""
    return repeat(1, accesses) * spatial(1, workers) * repeat(1, wide)


def owners_of_boxes(
    shape: Sequence[Extent], wide: int, machine: Machine, *, accesses: int = 4
) -> Mapping:
    """Boxes with up to so many accesses of a worker, as far as that leaves blocks enough.

    On a processor a box is a few vectors of a row, no more than the row has.
    """
    if machine.is_processor:
        row = shape[-1]
        while isinstance(row, int) and accesses > 1 and (accesses // 2) * machine.lanes >= row:
            accesses //= 2
    else:
        extents, workers = _workers_of_boxes(shape, wide, machine)
        if all(isinstance(extent, int) for extent in extents):
            blocks = prod(ceil(n / w) for n, w in zip(extents, workers, strict=True))
            accesses = max(1, min(accesses, blocks // (GPU.least_blocks * machine.threads)))
            accesses = power(accesses + 1) // 2
    return boxes_of(shape, wide, machine, accesses)


def boxes_of(shape: Sequence[Extent], wide: int, machine: Machine, accesses: int) -> Mapping:
    """A box of a tensor for each block: workers and then accesses go along the last axes first.

    wide  elements of an access, along the last axis
    """
    ones = [1] * (len(shape) - 1)
    if machine.is_processor:
        return repeat(*ones, accesses) * spatial(*ones, machine.lanes)
    extents, workers = _workers_of_boxes(shape, wide, machine)
    repeats = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        extent = extents[axis]
        most = power(ceil(extent / workers[axis])) if isinstance(extent, int) else accesses
        repeats[axis] = max(1, min(accesses, most))
        accesses //= repeats[axis]
    return repeat(*repeats) * spatial(*workers) * repeat(*ones, wide)


def _workers_of_boxes(
    shape: Sequence[Extent], wide: int, machine: Machine
) -> tuple[list[Extent], list[int]]:
    """The extents, the last one in accesses, and the workers along each."""
    extents = [*shape[:-1], ceil(shape[-1] / wide) if isinstance(shape[-1], int) else shape[-1]]
    alone = all(extent == 1 for extent in shape[:-1])
    left, workers = GPU.block_workers, [1] * len(shape)
    for axis in reversed(range(len(shape))):
        extent = extents[axis]
        most = power(extent) if isinstance(extent, int) else left if alone else GPU.workers_along
        workers[axis] = min(left, most)
        left //= workers[axis]
    workers[0] *= max(1, left * machine.lanes // GPU.block_workers)  # of a whole warp at least
    return extents, workers
