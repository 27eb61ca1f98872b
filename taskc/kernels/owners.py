"""Who has which elements of a block; first of all where that is many workers around a memory of their own.

A worker takes as many neighbouring elements as one access may have, the workers of a warp take neighbours of
these, and the next access of a worker lies behind all of its block's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, prod
from typing import Any

from taskc import DType, Machine, Mapping, repeat, spatial
from taskc.kernels.machine_facts import GPU

Extent = Any  # an int, or a tc.dim


def width(extent: Extent, *dtypes: DType) -> int:
    """How many neighbours an access has in rows of so many elements: each row starts at such an address."""
    return gcd(divisor(extent), *[GPU.access_bytes // dtype.nbytes for dtype in dtypes])


def divisor(extent: Extent) -> int:
    """What is known to divide an extent; 0, which all numbers divide, is that of 0."""
    return extent if isinstance(extent, int) else getattr(extent, "multiple", 1)


def power(n: int) -> int:
    """The smallest power of two from n on."""
    return 1 << max(0, n - 1).bit_length()


def along(workers: int, accesses: int, wide: int) -> Mapping:
    """A part of a row that so many workers walk along, side by side."""
    return repeat(1, accesses) * spatial(1, workers) * repeat(1, wide)


def owners_of_whole_rows(m: Extent, n: Extent, dtype: DType, machine: Machine) -> Mapping | None:
    """Whole rows of n elements, in the registers of a block; None where they don't fit."""
    if (
        machine.is_processor
        or not isinstance(n, int)
        or not 0 < n <= machine.lanes**2 * GPU.most_row_elements
    ):
        return None
    wide = width(n, dtype)
    if n <= machine.lanes * GPU.row_elements_of_warp:
        workers = min(machine.lanes, power(ceil(n / wide)))
    else:
        workers = min(
            power(ceil(n / GPU.row_elements_of_block)),
            max(GPU.row_workers, power(ceil(n / GPU.most_row_elements))),
        )
    rows = max(1, GPU.block_workers // workers)
    if isinstance(m, int):
        # Every multiprocessor has a block, as far as there are rows: of a whole warp at least.
        rows = min(rows, max(machine.lanes // workers, power(m // machine.threads), 1))
    own = along(workers, ceil(n / (workers * wide)), wide)
    return own if rows == 1 else spatial(rows, 1) * own


def owners_of_boxes(
    shape: Sequence[Extent], wide: int, machine: Machine, *, accesses: int = 4
) -> Mapping:
    """A box of a tensor for each block: workers and then accesses go along the last axes first.

    On a processor it is a few vectors of a row, no more than the row has.

    wide  elements of an access, along the last axis
    """
    ones = [1] * (len(shape) - 1)
    if machine.is_processor:
        row = shape[-1]
        while isinstance(row, int) and accesses > 1 and (accesses // 2) * machine.lanes >= row:
            accesses //= 2
        return repeat(*ones, accesses) * spatial(*ones, machine.lanes)
    lined = [*shape[:-1], ceil(shape[-1] / wide) if isinstance(shape[-1], int) else shape[-1]]
    alone = all(extent == 1 for extent in shape[:-1])
    left, workers = GPU.block_workers, [1] * len(shape)
    for axis in reversed(range(len(shape))):
        extent = lined[axis]
        most = power(extent) if isinstance(extent, int) else left if alone else GPU.workers_along
        workers[axis] = min(left, most)
        left //= workers[axis]
    workers[0] *= max(1, left * machine.lanes // GPU.block_workers)  # of a whole warp at least
    if all(isinstance(extent, int) for extent in lined):
        blocks = prod(ceil(n / w) for n, w in zip(lined, workers, strict=True))
        accesses = max(1, min(accesses, blocks // (GPU.least_blocks * machine.threads)))
        accesses = power(accesses + 1) // 2
    repeats = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        extent = lined[axis]
        most = power(ceil(extent / workers[axis])) if isinstance(extent, int) else accesses
        repeats[axis] = max(1, min(accesses, most))
        accesses //= repeats[axis]
    return repeat(*repeats) * spatial(*workers) * repeat(*ones, wide)
