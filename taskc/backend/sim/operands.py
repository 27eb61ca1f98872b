"""The operands of matrix products in shared memory: their placement, and whether they have arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.asynchronous import check_fences
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.recording import Races, memory_of
from taskc.backend.sim.shadow import (
    SEVERAL,
    SITE_BITS,
    SITE_MASK,
    WORKER_BITS,
    latest_clocks,
    workers_of,
)
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_elements
from taskc.ir.fragments import placement
from taskc.ir.target import WarpgroupInstruction


@dataclass(frozen=True, slots=True)
class Window:
    """The elements [mn, k] of one fragment in a memory."""

    memory: Memory
    at: Array

    def values(self) -> Array:
        return np.asarray(self.memory.data[self.at])


Find: TypeAlias = Callable[[list[Frame], int, int], "Window | None"]
"""The fragment that lies so many elements further along mn and k; None where that is reported."""


class SharedOperands:
    def __init__(self, operations: Operations) -> None:
        self.run = operations.run
        self.accesses = operations.accesses

    def find(
        self,
        tensor: ir.Tensor,
        origin: tuple[ir.Expression, ...],
        along: str,
        row: WarpgroupInstruction,
        is_left: bool,
        node: ir.Mma | ir.Do,
    ) -> Find:
        operand_placement = placement(tensor, along, row, is_left=is_left)
        if operand_placement is None:
            raise InternalError(f"{tensor.name} does not lie as {row.name} takes it")
        place = self.accesses.place(tensor, origin, node)
        mn, k = row.shape[0 if is_left else 1], row.shape[2]
        extents = (mn, k) if along == "k" else (k, mn)
        offsets = operand_placement.offsets(mn, k)
        size = size_in_elements(tensor)

        def window(frames: list[Frame], further_mn: int, further_k: int) -> Window | None:
            starts = np.concatenate(
                [np.broadcast_to(place(frame)[0], (1, frame.width)) for frame in frames], axis=1
            )
            start = int(starts[0, 0])
            if (starts != start).any():
                message = f"the workers of a warpgroup don't agree on where {tensor.name} begins"
                wrong = np.ones((1, frames[0].width), np.bool_)
                frames[0].fault("divergence", message, wrong, node)
            everyone = np.ones((1, frames[0].width), np.bool_)
            memory = memory_of(frames[0], tensor)
            if self.run.is_flat:
                at = where = start + offsets
                fits = int(at.max()) < size
            else:
                further = (further_mn, further_k) if along == "k" else (further_k, further_mn)
                at, where, fits = self._elements(tensor, start, further, extents)
                at, where = (at, where) if along == "k" else (at.T, where.T)
            if not fits:
                message = f"a fragment of {mn} by {k} reaches over the end of {tensor.name}"
                frames[0].fault("out-of-bounds", message, everyone, node)
                return None
            start = int(where[0, 0])
            lies = np.array_equal(where - start, offsets)
            begins = start + (tensor.offset or 0) // tensor.dtype.nbytes
            if not lies or not operand_placement.is_aligned(begins):
                message = (
                    f"a fragment of {tensor.name} does not begin with an atom of eight lines, at a"
                    " multiple of 16 bytes"
                )
                frames[0].fault("misaligned", message, everyone, node)
            return Window(memory, at + int(np.max(memory.rows)))

        return window

    def _elements(
        self, tensor: ir.Tensor, start: int, further: tuple[int, int], extents: tuple[int, int]
    ) -> tuple[Array, Array, bool]:
        """A fragment's elements: their offsets, their offsets in the layout, and whether all of them exist."""
        shape = self.run.shapes[tensor]
        *outer, first, second = (int(i) for i in np.unravel_index(start, shape))
        first, second = first + further[0], second + further[1]
        fits = first + extents[0] <= shape[-2] and second + extents[1] <= shape[-1]
        rows, columns = np.indices(extents)
        indices = (first + rows, second + columns) if fits else (rows, columns)
        at = np.ravel_multi_index((*outer, *indices), shape)
        if tensor.layout is None:
            return at, at, fits
        tasks = np.stack(np.unravel_index(at, shape), axis=-1)
        return at, tensor.layout.find(0, tasks[..., -tensor.layout.rank :]), fits

    def check(self, frame: Frame, window: Window, node: ir.Mma | ir.Do, site: int) -> None:
        """Check that elements read by a warp have arrived, and are visible to it and to the asynchronous proxy."""
        memory = window.memory
        shadow, order = memory.shadow, frame.group.order
        assert shadow is not None
        at = window.at.reshape(-1)
        missing = memory.lacks(at) if not memory.complete else np.zeros(at.shape, np.bool_)
        touched = (at[:, None] * memory.granules + np.arange(memory.granules)).reshape(-1)
        known = order.known[0, frame.worker_row]
        late = np.zeros(touched.shape, np.bool_)
        if shadow.flight is not None:
            state = shadow.flight.state[touched]
            for one in np.unique(state[state != 0]).tolist():
                channel = order.workers + (one & SITE_MASK) - 1
                if one < 0 or (known[:, channel] <= one >> SITE_BITS).any():
                    late |= state == one
        if np.count_nonzero(late):
            lanes = frame.lanes(
                (1, frame.width), touched, np.zeros(touched.shape, np.int64), site, False
            )
            sites = shadow.flight.site[touched[late]] if shadow.flight is not None else touched
            Races(frame, memory, site).unwaited("reads", lanes, late, sites)
        elif np.count_nonzero(missing):
            name = frame.name_element(memory, int(at[np.argmax(missing)]) * memory.granules)
            everyone = np.ones((1, frame.width), np.bool_)
            message = f"{name} is read before it is written"
            frame.fault("uninitialized", message, everyone, node)
        self._check_writes(frame, memory, touched, site)
        check_fences(frame, memory, at, frame.worker_row, node, "read by a matrix product")

    def _check_writes(self, frame: Frame, memory: Memory, touched: Array, site: int) -> None:
        """Check that all workers of the warp come after all ordinary writes."""
        shadow, order = memory.shadow, frame.group.order
        assert shadow is not None
        stamps, who = shadow.when[touched], shadow.who[touched]
        known = order.known[0, frame.worker_row, : order.workers]
        is_written = stamps != 0
        clocks = latest_clocks(who[is_written] & SEVERAL, stamps[is_written] >> SITE_BITS, order)
        if clocks is not None:  # all writers at once; one after another only to name a late one
            others = frame.worker_row[:, None] != np.arange(order.workers)
            if not np.count_nonzero((known <= clocks) & others):
                return
        for writer in np.unique(who[stamps != 0]).tolist():
            mine = (who == writer) & (stamps != 0)
            latest = int(stamps[mine].max()) >> SITE_BITS
            worker = writer & SEVERAL
            late = (known[:, workers_of(worker, order)] <= latest).any(axis=1)
            late &= frame.worker_row != worker
            if np.count_nonzero(late):
                first = int(np.flatnonzero(mine)[np.argmax(stamps[mine])])
                reader = int(frame.group.units[0]) << WORKER_BITS | int(
                    frame.worker_row[np.argmax(late)]
                )
                conflict = (
                    int(touched[first]),
                    reader,
                    int(who[first]),
                    int(stamps[first]) & SITE_MASK,
                    int(mine.sum()),
                )
                Races(frame, memory, site).race("reads", "writes", conflict)
                return

    def mark(self, window: Window, channel: int, stamp: int) -> None:
        """Mark the elements as being read until the channel's clock is known."""
        memory = window.memory
        shadow: Any = memory.shadow
        if channel not in shadow.products:
            shadow.products[channel] = np.zeros(shadow.size, np.int64)
        for granule in range(memory.granules):
            shadow.products[channel][window.at * memory.granules + granule] = stamp
