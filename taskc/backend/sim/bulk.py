"""Bulk copies: many elements that one worker sends off."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.races import Races
from taskc.backend.sim.shadow import SITE_BITS, Lanes
from taskc.backend.sim.synchronization import ring_state, schedule_of
from taskc.ir import nodes as ir

_LINE, _PIECE = 128, 16  # bytes


def task_indices(shape: tuple[int, ...]) -> list[Array]:
    """The coordinates of all tasks of a shape, row-major, each [1, tasks]."""
    grids = np.indices(shape).reshape(len(shape), -1)
    return [grid[None, :] for grid in grids]


def misaligned_box(
    shared: ir.Tensor,
    first: int,
    distant: ir.Tensor,
    shape: tuple[int, ...],
    box: Sequence[int],
) -> str:
    """What the hardware wouldn't copy: rows in pieces of 16 bytes, into whole lines of 128.

    first  where the box begins in shared memory, in elements
    """
    at = first * shared.dtype.nbytes + (shared.offset or 0)
    size = distant.dtype.nbytes
    row = box[-1] * size
    pitches = [prod(shape[dimension:]) * size for dimension in range(1, len(shape))]
    if at % _LINE:
        return f"a bulk copy is at a multiple of {_LINE} bytes of shared memory, and this at {at}"
    if row % _PIECE:
        return f"the rows of a bulk copy are multiples of {_PIECE} bytes, and these {row}"
    if distant.layout is None and any(pitch % _PIECE for pitch in pitches):
        return f"rows of {distant.name} are {pitches[-1]} bytes long, which isn't a multiple of {_PIECE}"
    return ""


def inside_of(shape: tuple[int, ...], at: Sequence[Array]) -> tuple[Array, Array]:
    """Row-major numbers of elements, 0 for those outside of a shape; and which are inside."""
    inside = np.ones(at[0].shape, np.bool_)
    flat = np.zeros(at[0].shape, np.int64)
    for position, extent in zip(at, shape, strict=True):
        inside &= (position >= 0) & (position < extent)
        flat = flat * extent + position
    return np.where(inside, flat, 0), inside


_MOST_OFFSET = 255


def pixels_at(
    found: Sequence[int], count: int, channels: int, numbers: Sequence[int]
) -> tuple[list[Array], str]:
    """The indices of pixels that a copy counts itself, and what it would make nonsense of.

    found    where the first filter begins, and the tap's offsets in it
    numbers  as tma.load.pixels has them behind `count` and `channels`
    """
    image, row, column, channel, *offsets = found
    rows, columns, row_stride, column_stride, above, left = numbers
    i, far = divmod(row + above, row_stride)
    j, wide = divmod(column + left, column_stride)
    problem = ""
    if far or wide or not (0 <= i < rows and 0 <= j < columns):
        problem = f"no filter begins in row {row} and column {column}"
    elif not all(0 <= offset <= _MOST_OFFSET for offset in offsets):
        problem = (
            f"a tap is up to {_MOST_OFFSET} rows and columns from its filter's first: {offsets}"
        )
    pixel, q = (index[0] for index in task_indices((count, channels)))
    number = pixel + ((image * rows + i) * columns + j)
    at = [
        number // (rows * columns),
        number // columns % rows * row_stride - above + offsets[0],
        number % columns * column_stride - left + offsets[1],
        channel + q,
    ]
    return at, problem


def bulk_move(frame: Frame, inner: Frame, memory: Memory, at: Any, values: Any, site: int) -> None:
    """A move by bulk copy, of a ring that still has its steps: one worker issues all of it."""
    ring = frame.run.ring_of[memory.tensor]
    counted = ring_state(frame, ring)
    shape = (1, inner.width)
    flat = np.broadcast_to(at, shape)[0]
    data = np.broadcast_to(values, shape)[0].copy()
    if inner.mask is not None:
        chosen = np.broadcast_to(inner.mask, shape)[0]
        flat, data = flat[chosen], data[chosen]
    rows = int(np.max(memory.rows))
    slot = int(flat[0] - rows) // int(np.prod(memory.shape[1:], dtype=np.int64))
    channel = counted.channel + slot
    clock = frame.group.order.tick(0, channel)
    counted.clock[slot] = clock
    counted.flying[slot] += 1
    launch(frame, memory, flat, 0, site, clock << SITE_BITS | (channel + 1))

    def arrive() -> None:
        memory.data[flat] = data
        memory.mark(flat)
        frame.run.changes += 1
        counted.flying[slot] -= 1

    schedule_of(frame).arrivals.append(arrive)


def launch(frame: Frame, memory: Memory, at: Array, column: int, site: int, state: int) -> None:
    shadow = memory.shadow
    assert shadow is not None
    for granule in range(memory.granules):
        lanes = issued(frame, at * memory.granules + granule, column, site)
        shadow.launch(lanes, state, Races(frame, memory, site))


def issued(frame: Frame, at: Array, column: int, site: int) -> Lanes:
    """An access to many elements by one worker."""
    columns = np.full(at.shape, column)
    return frame.lanes((1, frame.width), at, columns, site, False)
