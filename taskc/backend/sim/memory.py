"""Storage of tensors' elements during a run.

Every memory is a flat array. Its lanes are what has a copy of its own: blocks for SHARED tensors,
blocks times workers for TILE, LOCAL and REGISTER ones. The array `written` holds
the memory's number where the element has been initialized; overlaid SHARED tensors have
different numbers, so that what another tensor left behind does not pass for initialized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.analysis.coalescing import swizzled
from taskc.backend.sim.shadow import Shadow
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir

Array: TypeAlias = npt.NDArray[Any]

LIVES = (1 << 15) - 2  # numbers that tell the lives of tensors apart


@dataclass(slots=True, eq=False)
class Storage:
    """One tensor's elements, for all lanes of a group.

    rows       of SHARED ones: where each block's elements start, [blocks, 1]
    lanes      of private memory: the shape of what has copies
    granules   shadow entries that one element covers
    complete   every element is known to be initialized
    overlaid   `written` is other tensors' too
    stride     in a cluster: from a block's elements to those of the next
    registers  of asynchronous matrix products: their state
    tried      nothing has been written since that was last looked at
    """

    tensor: ir.Tensor
    shape: tuple[int, ...]
    data: Array
    written: Array
    rows: Any = 0
    lanes: Any = 0
    number: int = 1
    granules: int = 1
    shadow: Shadow | None = None
    complete: bool = False
    overlaid: bool = False
    stride: int = 0
    size: int = field(init=False)
    registers: Any = None
    tried: bool = True

    def __post_init__(self) -> None:
        self.size = prod(self.shape)

    @property
    def required_shadow(self) -> Shadow:
        """The shadow of memory that asynchronous actions reach."""
        assert self.shadow is not None
        return self.shadow

    def look(self) -> bool:
        """Whether every element is initialized, if that can be told at once."""
        if not self.tried and not self.complete:
            self.tried = True
            if not self.overlaid:
                self.complete = bool((self.written == self.number).all())
        return self.complete

    def mark(self, at: Any) -> None:
        """Mark the elements at flat indices `at` as written."""
        if self.complete:
            return
        self.tried = False
        for entries in self.entries(at):
            self.written[entries] = self.number

    def put(self, at: Any, values: Any) -> None:
        """Write elements at flat indices."""
        self.data[at] = values
        self.mark(at)

    def entries(self, at: Any) -> Iterator[Any]:
        """The shadow entries of elements at flat indices: their first ones, their second ones, and so on."""
        if self.granules == 1:
            yield at
        else:
            for granule in range(self.granules):
                yield at * self.granules + granule

    def all_entries(self, at: Array) -> Array:
        """The shadow entries of elements at flat indices, one element's after another's."""
        return (at[:, None] * self.granules + np.arange(self.granules)).reshape(-1)

    def lacks(self, at: Any) -> Any:
        """Mask of uninitialized elements."""
        return self.written[at * self.granules if self.granules != 1 else at] != self.number

    def again(self, number: int) -> Storage:
        """The same place, with all elements uninitialized."""
        return self.seen_from(self.rows, number)

    def seen_from(self, rows: Any, number: int | None = None) -> Storage:
        """The same elements, with a block's own at `rows`; it isn't known which are initialized."""
        return replace(
            self,
            rows=rows,
            number=self.number if number is None else number,
            complete=False,
            overlaid=True,
            registers=None,
            tried=True,
        )

    def forget(self) -> None:
        """Mark every element as uninitialized."""
        self.complete = False
        self.tried = True
        self.written[...] = 0


def shared_memory(
    tensor: ir.Tensor, shape: tuple[int, ...], blocks: int, agents: int, number: int
) -> Storage:
    """Memory of a SHARED tensor without an offset, in so many blocks."""
    size = prod(shape)
    return Storage(
        tensor,
        shape,
        np.zeros(blocks * size, tensor.dtype.numpy),
        np.zeros(blocks * size, np.int16),
        rows=(np.arange(blocks) * size)[:, None] if blocks > 1 else 0,
        number=number,
        shadow=Shadow(blocks * size, agents, is_global=False),
    )


class SharedArena:
    """The SHARED memory of blocks whose tensors have offsets, and may overlap."""

    def __init__(self, blocks: int, size: int, granule: int, shadow: Shadow | None) -> None:
        self.blocks = blocks
        self.size = -(-size // 16) * 16
        self.granule = granule
        self.bytes = np.zeros(blocks * self.size, np.uint8)
        self.written = np.zeros(blocks * self.size // granule, np.int16)
        self.shadow = shadow

    def place(self, tensor: ir.Tensor, shape: tuple[int, ...], number: int) -> Storage:
        size = tensor.dtype.nbytes
        offset = tensor.offset
        assert offset is not None
        assert offset % size == 0
        rows = (np.arange(self.blocks) * (self.size // size) + offset // size)[:, None]
        return Storage(
            tensor,
            shape,
            self.bytes.view(tensor.dtype.numpy),
            self.written,
            rows=rows,
            number=number,
            granules=size // self.granule,
            shadow=self.shadow,
            overlaid=True,
        )


# --- Places in a layout ---------------------------------------------------------------------------


def physical(tensor: ir.Tensor, shape: tuple[int, ...], linear: Array) -> Array:
    """The physical offsets of elements, from their row-major offsets."""
    return swizzled(tensor.swizzle, laid_out(tensor, shape, linear))


def laid_out(tensor: ir.Tensor, shape: tuple[int, ...], linear: Array) -> Array:
    """The layout's offsets of elements, from their row-major ones; used for a flat access.

    The data of a run stand in this order: a swizzle exchanges places only in hardware, where it
    decides about banks.
    """
    if tensor.layout is None:
        return linear
    tasks = np.stack(np.unravel_index(linear, shape), axis=-1)
    return tensor.layout.find(0, tasks)


def elements_at(tensor: ir.Tensor, shape: tuple[int, ...]) -> Array | None:
    """The row-major offset of the element at each place of a layout, -1 for none; None without a layout."""
    if tensor.layout is None:
        return None
    row_major = np.full(tensor.layout.slots, -1, np.int64)
    row_major[addresses_of(tensor, shape)] = np.arange(prod(shape))
    return row_major


def addresses_of(tensor: ir.Tensor, shape: tuple[int, ...]) -> Array:
    """The address of each element, in row-major order."""
    assert tensor.layout is not None
    tasks = np.indices(shape).reshape(len(shape), -1).T
    return tensor.layout.find(0, tasks)
