"""The axes of a tensor in any other order.

Axes that stay together are joined, and a kernel's blocks go through four: if more are left, all but the last of
the input and that of the output are counted by one number. Where the last axis stays last, rows are
copied. Otherwise the last axis of the input and that of the output span squares of as many rows as there are
lanes, each of which is turned in registers (see squares.py). The squares of a block share their cache lines on
both sides. On GPUs each worker turns small squares in its registers, as wide as an access, and exchanges their
rows through shared memory; short rows that end within an access are taken as one run (see short_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    TensorType,
    boolean,
    f32,
    repeat,
    spatial,
)
from taskc.kernels.machine_facts import GPU, PROCESSOR
from taskc.kernels.owners import owners_of_boxes, power, width
from taskc.kernels.short_rows import turn_short_rows
from taskc.kernels.squares import columns, quarters

_RANK = 4


@dataclass(frozen=True, slots=True)
class Axes:
    """The four axes that blocks go through, and where an element of them lies.

    extents  of the four
    across   which of them the output ends with; the input ends with the last
    given    the extents of x, and made: of y
    order    which axis of x is each of y's
    source   the indices of x, from those of the four; target: the indices of y
    """

    extents: tuple[Any, ...]
    across: int
    given: tuple[Any, ...]
    made: tuple[Any, ...]
    order: tuple[int, ...]
    source: Callable[..., Any]
    target: Callable[..., Any]


def joined(shape: Sequence[Any], order: Sequence[int]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The extents of at least four axes, neighbours that stay together being one, and their new order."""
    rank = len(shape)
    if sorted(axis % rank if -rank <= axis < rank else rank for axis in order) != [*range(rank)]:
        raise CompileError(f"{tuple(order)} is no order of the axes of {tuple(shape)}")
    wanted = [axis % rank for axis in order]
    wanted = [axis for axis in wanted if not (isinstance(shape[axis], int) and shape[axis] == 1)]
    runs: list[list[int]] = []
    for axis in wanted:
        follows = bool(runs) and not [n for n in wanted if runs[-1][-1] < n < axis]
        if follows and axis > runs[-1][-1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    missing = max(0, _RANK - len(runs))
    sources = sorted(runs)
    extents = [prod(shape[axis] for axis in run) for run in sources]
    places = (*range(missing), *[missing + sources.index(run) for run in runs])
    return (*[1] * missing, *extents), places


def axes_of(shape: Sequence[Any], wanted: Sequence[int]) -> Axes:
    """Four axes as they are; of more, those that neither side ends with are counted by one number."""
    given, order = joined(shape, wanted)
    made = tuple([given[axis] for axis in order])
    across, last, is_plain = order[-1], len(given) - 1, len(given) == _RANK
    extents = given
    parts: list[tuple[int, int, int]] = []  # of what number an index is which digit; 0: no limit
    if not is_plain:
        if not all(isinstance(extent, int) for extent in given):
            raise CompileError(
                f"the order {tuple(wanted)} takes the axes of {tuple(shape)} apart too often",
                hint=f"with neighbours joined, {len(given)} are left, and {_RANK} is the limit where"
                " their extents aren't known",
            )
        count = 1
        for axis in range(last, -1, -1):
            if axis in (across, last):
                parts.insert(0, (_RANK - 1 if axis == last else _RANK - 2, 0, 0))
            else:
                is_first = not set(range(axis)) - {across}
                parts.insert(0, (_RANK - 3, max(1, count), 0 if is_first else max(1, given[axis])))
                count *= given[axis]
        height = 1 if across == last else given[across]
        extents = (1, count, height, given[last])
        across = _RANK - 1 if across == last else _RANK - 2

    @tc.function
    def source(place):
        return place if is_plain else (*[_digit(place[at], size, n) for at, size, n in parts],)

    @tc.function
    def target(place):
        there = source(place)
        return (*[there[axis] for axis in order],)

    return Axes(extents, across, given, made, order, source, target)


@tc.function
def _digit(number, size, extent):
    """A digit of a number: the first has no others before it, the last none behind it."""
    upper = number // size if size > 1 else number
    return upper % extent if extent else upper


def transpose(
    shape: Sequence[Any],
    order: Sequence[int] | None = None,
    *,
    dtype: DType = f32,
    machine: Machine | None = None,
) -> KernelDefinition:
    """y's axis number k is x's axis order[k]; by default the axes are reversed."""
    wanted = range(len(shape))[::-1] if order is None else order
    axes = axes_of(shape, wanted)
    given = dtype[tuple(shape)].reshape(*axes.given)
    made = dtype[tuple([shape[axis] for axis in wanted])].reshape(*axes.made)
    machine = machine or tc.machine()
    make = _turn_squares if machine.is_processor else _turn_tiles
    if axes.across == _RANK - 1:
        make = _copy_rows
    by_runs = None if machine.is_processor else turn_short_rows(given, axes.order, made)
    return by_runs or make(given, axes, made, machine)


def _copy_rows(
    given: TensorType, axes: Axes, made: TensorType, machine: Machine
) -> KernelDefinition:
    seen, dtype = axes.extents, given.dtype
    own = owners_of_boxes(seen, width(seen[-1], dtype), machine)

    @tc.kernel(workers=own.workers)
    def transpose(x: given, y: tc.out[made]):
        for i, j, k, col in tc.tiles(seen, by=own.shape):
            for p, q, r, s in own:
                if i + p < seen[0] and j + q < seen[1] and k + r < seen[2] and col + s < seen[3]:
                    place = i + p, j + q, k + r, col + s
                    y[axes.target(place)] = x[axes.source(place)]

    return transpose


def _turn_squares(
    given: TensorType, axes: Axes, made: TensorType, machine: Machine
) -> KernelDefinition:
    seen, across, dtype = axes.extents, axes.across, given.dtype
    lanes = max(4, machine.lanes)
    height, width = seen[across], seen[-1]
    tall, wide = _squares(height, lanes), _squares(width, lanes)
    by = [1] * _RANK
    by[across], by[-1] = tall * lanes, wide * lanes
    outside = False if dtype is boolean else 0
    line = repeat(lanes, 1) * spatial(1, lanes)

    @tc.kernel(workers=lanes)
    def transpose(x: given, y: tc.out[made]):
        for a, b, c, d in tc.tiles(seen, by=by):
            for p in range(tall):
                for q in range(wide):
                    square = tc.shared(dtype[lanes, lanes])
                    row, col = (a, b, c)[across] + p * lanes, d + q * lanes
                    if row + lanes > height or col + lanes > width:
                        for i, j in line:
                            square[i, j] = outside
                    for i, j in line:
                        if row + i < height and col + j < width:
                            square[i, j] = x[
                                axes.source(_replaced(across, a, b, c, row + i, col + j))
                            ]
                    part = quarters(square)
                    for c1, c0, r1, r0 in columns(lanes):
                        if row + 4 * r1 + r0 < height and col + 4 * c1 + c0 < width:
                            place = _replaced(across, a, b, c, row + 4 * r1 + r0, col + 4 * c1 + c0)
                            y[axes.target(place)] = part[c0, r1, c1, r0]

    return transpose


def _turn_tiles(
    given: TensorType, axes: Axes, made: TensorType, machine: Machine
) -> KernelDefinition:
    seen, across, dtype = axes.extents, axes.across, given.dtype
    height, broad = seen[across], seen[-1]
    side, repeats, workers = _tile(height, broad, dtype, machine)
    read = repeat(*repeats) * spatial(*workers) * repeat(side, side)
    # The same workers, with rows for columns.
    turned = repeat(*repeats[::-1]) * spatial(*workers[::-1], order=(1, 0)) * repeat(side, side)
    tall, wide = read.shape
    count = read.workers
    lanes = min(count, tall // side)
    written = repeat(wide * lanes // count, tall // (side * lanes)) * (
        spatial(count // lanes, lanes) * repeat(1, side)
    )
    by = [1] * _RANK
    by[across], by[-1] = tall, wide
    outside = False if dtype is boolean else 0
    # Neighbours among the columns lie in different groups of rows. Where several are read at one time, some room
    # behind each group has them lie in different banks.
    groups = wide // side
    at_once = min(machine.lanes, GPU.bank_bytes // (side * dtype.nbytes)) // lanes
    if at_once > 1 and groups > at_once // side:
        groups += max(1, at_once // side)

    @tc.kernel(workers=count)
    def transpose(x: given, y: tc.out[made]):
        for a, b, c, d in tc.tiles(seen, by=by):
            row = (a, b, c)[across]
            squares = tc.tile(dtype, read, outside)
            for i, j in read:
                if row + i < height and d + j < broad:
                    squares[i, j] = x[axes.source(_replaced(across, a, b, c, row + i, d + j))]
            # What is beside each other here is `side` columns apart: that spreads over all banks.
            columns = tc.shared(dtype[side, groups, tall])
            for j, i in turned:
                columns[j % side, j // side, i] = squares[i, j]
            for j, i in written:
                if row + i < height and d + j < broad:
                    place = _replaced(across, a, b, c, row + i, d + j)
                    y[axes.target(place)] = columns[j % side, j // side, i]

    return transpose


def _tile(
    height: Any, broad: Any, dtype: DType, machine: Machine
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """The side of a worker's squares, how many it has, and the workers of a block, down and across."""
    side = gcd(width(height, dtype), width(broad, dtype), GPU.square_side)
    rows, columns = (
        power(-(-extent // side)) if isinstance(extent, int) else GPU.block_workers
        for extent in (height, broad)
    )
    most, repeats = (16, 1) if side >= 4 else (8, 4)
    down = min(rows, max(most, GPU.block_workers // columns))
    beside = min(columns, GPU.block_workers // down)
    down = max(down, machine.lanes // beside)
    if rows >= down * repeats:
        return side, (repeats, 1), (down, beside)
    return side, (1, max(1, min(repeats, columns // beside))), (down, beside)


def _squares(extent: Any, lanes: int) -> int:
    return (
        max(1, min(PROCESSOR.transposed_squares, -(-extent // lanes)))
        if isinstance(extent, int)
        else PROCESSOR.transposed_squares
    )


@tc.function
def _replaced(across, a, b, c, row, col):
    """Indices in the input, with another one in the axis `across`."""
    return (
        row if across == 0 else a,
        row if across == 1 else b,
        row if across == 2 else c,
        col,
    )
