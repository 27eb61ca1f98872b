"""Where the elements of tensors live during a run.

Every memory is a flat array. Its lanes are what has a copy of its own: blocks for SHARED tensors,
blocks times workers for TILE, LOCAL and REGISTER ones. Beside the data stands `written`, which
holds the memory's number where the element has been initialized; overlaid SHARED tensors have
different numbers, so that what another tensor left behind does not pass for initialized.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.backend.sim.shadow import Shadow
from taskc.ir import nodes as ir

Array: TypeAlias = npt.NDArray[Any]

LIVES = (1 << 15) - 2  # how many numbers there are for what is written


class Memory:
    """One tensor's elements, for all lanes of a group."""

    __slots__ = (
        "complete",
        "data",
        "granules",
        "lanes",
        "number",
        "overlaid",
        "registers",
        "rows",
        "shadow",
        "shape",
        "size",
        "stride",
        "tensor",
        "tried",
        "written",
    )

    def __init__(
        self,
        tensor: ir.Tensor,
        shape: tuple[int, ...],
        data: Array,
        written: Array,
        *,
        rows: Any = 0,
        lanes: Any = 0,
        number: int = 1,
        granules: int = 1,
        shadow: Shadow | None = None,
        complete: bool = False,
        overlaid: bool = False,
        stride: int = 0,
    ) -> None:
        self.tensor = tensor
        self.shape = shape
        self.size = prod(shape)
        self.data = data
        self.written = written
        self.rows = rows  # SHARED: where each block's elements start, [blocks, 1]
        self.stride = stride  # in a cluster: from a block's elements to those of the next
        self.lanes = lanes  # private memory: the shape of what has copies
        self.number = number
        self.overlaid = overlaid  # `written` is other tensors' too
        self.granules = granules  # shadow entries that one element covers
        self.shadow = shadow
        self.complete = complete  # every element is known to be initialized
        self.registers: Any = None  # of asynchronous matrix products: their state
        self.tried = True  # nothing has been written since that was last looked at

    def look(self) -> bool:
        """Whether every element is initialized, if that can be told at once."""
        if not self.tried and not self.complete:
            self.tried = True
            if not self.overlaid:
                self.complete = bool((self.written == self.number).all())
        return self.complete

    def mark(self, at: Any) -> None:
        """The elements at flat indices `at` have been written."""
        if self.complete:
            return
        self.tried = False
        if self.granules == 1:
            self.written[at] = self.number
        else:
            for granule in range(self.granules):
                self.written[at * self.granules + granule] = self.number

    def lacks(self, at: Any) -> Any:
        """Which of the elements are uninitialized."""
        return self.written[at * self.granules if self.granules != 1 else at] != self.number

    def again(self, number: int) -> Memory:
        """The same place, where nothing counts as initialized before it is written again."""
        return self.seen_from(self.rows, number)

    def seen_from(self, rows: Any, number: int | None = None) -> Memory:
        """The same elements, of which a block has those at `rows`."""
        return Memory(
            self.tensor,
            self.shape,
            self.data,
            self.written,
            rows=rows,
            lanes=self.lanes,
            number=self.number if number is None else number,
            granules=self.granules,
            shadow=self.shadow,
            overlaid=True,
            stride=self.stride,
        )

    def forget(self) -> None:
        """Every element is uninitialized again."""
        self.complete = False
        self.tried = True
        self.written[...] = 0


class Arena:
    """The SHARED memory of blocks whose tensors have been given offsets, and may overlap."""

    def __init__(self, blocks: int, size: int, granule: int, shadow: Shadow | None) -> None:
        self.blocks = blocks
        self.size = -(-size // 16) * 16
        self.granule = granule
        self.bytes = np.zeros(blocks * self.size, np.uint8)
        self.written = np.zeros(blocks * self.size // granule, np.int16)
        self.shadow = shadow

    def place(self, tensor: ir.Tensor, shape: tuple[int, ...], number: int) -> Memory:
        size = tensor.dtype.nbytes
        offset = tensor.offset
        assert offset is not None
        assert offset % size == 0
        rows = (np.arange(self.blocks) * (self.size // size) + offset // size)[:, None]
        return Memory(
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
