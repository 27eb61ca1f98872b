"""The axes of a tensor in any other order.

Axes that stay together are joined, so that a kernel sees at most four: `views(shape, order)`. Where the
last axis stays last, rows are copied. Otherwise the last axis of the input and that of the output span
squares of as many rows as there are lanes, each of which is turned in registers (see squares.py). The
squares of a block share their cache lines on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, KernelDefinition, boolean, f32, repeat, spatial
from taskc.kernels.squares import columns, quarters

_RANK = 4
_SQUARES = 16  # along each side of a block


def views(
    shape: Sequence[Any], order: Sequence[int]
) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]]:
    """How a kernel sees its input, the order of its axes, and its output: four axes each."""
    rank = len(shape)
    if sorted(axis % rank if -rank <= axis < rank else rank for axis in order) != [*range(rank)]:
        raise CompileError(f"{tuple(order)} is no order of the axes of {tuple(shape)}")
    wanted = [axis % rank for axis in order]
    wanted = [axis for axis in wanted if not (isinstance(shape[axis], int) and shape[axis] == 1)]
    runs: list[list[int]] = []
    for axis in wanted:
        follows = bool(runs) and not [n for n in wanted if runs[-1][-1] < n < axis]
        if follows and axis > runs[-1][-1] and _are_numbers(shape, (*runs[-1], axis)):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if len(runs) > _RANK:
        raise CompileError(
            f"the order {tuple(order)} takes the axes of {tuple(shape)} apart too often",
            hint=f"with neighbours joined, {len(runs)} are left, and {_RANK} is the limit",
        )
    missing = _RANK - len(runs)
    sources = sorted(runs)
    extents = [shape[run[0]] if len(run) == 1 else prod(shape[n] for n in run) for run in sources]
    seen = (*[1] * missing, *extents)
    places = (*range(missing), *[missing + sources.index(run) for run in runs])
    return seen, places, tuple([seen[place] for place in places])


def _are_numbers(shape: Sequence[Any], axes: Sequence[int]) -> bool:
    return all(isinstance(shape[axis], int) for axis in axes)


def transpose(
    shape: Sequence[Any], order: Sequence[int] | None = None, *, dtype: DType = f32
) -> KernelDefinition:
    """y's axis number k is x's axis order[k]; by default the axes are reversed."""
    axes = range(len(shape))[::-1] if order is None else order
    seen, places, result = views(shape, axes)
    make = _copy_rows if places[-1] == _RANK - 1 else _turn_squares
    return make(seen, places, result, dtype)


def _copy_rows(
    seen: tuple[Any, ...], places: tuple[int, ...], result: tuple[Any, ...], dtype: DType
) -> KernelDefinition:
    lanes = tc.machine().lanes
    width, unroll = seen[-1], 4
    while isinstance(width, int) and unroll > 1 and (unroll // 2) * lanes >= width:
        unroll //= 2
    own = repeat(unroll) * spatial(lanes)

    @tc.kernel(workers=own.workers)
    def transpose(x: dtype[seen], y: tc.out[dtype[result]]):
        for i, j, k, col in tc.tiles(seen, by=(1, 1, 1, unroll * lanes)):
            for q in own:
                if col + q < width:
                    y[_moved(places, (i, j, k, col + q))] = x[i, j, k, col + q]

    return transpose


def _turn_squares(
    seen: tuple[Any, ...], places: tuple[int, ...], result: tuple[Any, ...], dtype: DType
) -> KernelDefinition:
    lanes = max(4, tc.machine().lanes)
    across = places[-1]  # the axis of x that becomes y's last
    height, width = seen[across], seen[-1]
    tall, wide = _squares(height, lanes), _squares(width, lanes)
    by = [1] * _RANK
    by[across], by[-1] = tall * lanes, wide * lanes
    outside = False if dtype is boolean else 0
    line = repeat(lanes, 1) * spatial(1, lanes)

    @tc.kernel(workers=lanes)
    def transpose(x: dtype[seen], y: tc.out[dtype[result]]):
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
                            square[i, j] = x[_replaced(across, a, b, c, row + i, col + j)]
                    part = quarters(square)
                    for c1, c0, r1, r0 in columns(lanes):
                        if row + 4 * r1 + r0 < height and col + 4 * c1 + c0 < width:
                            place = _replaced(across, a, b, c, row + 4 * r1 + r0, col + 4 * c1 + c0)
                            y[_moved(places, place)] = part[c0, r1, c1, r0]

    return transpose


def _squares(extent: Any, lanes: int) -> int:
    return max(1, min(_SQUARES, -(-extent // lanes))) if isinstance(extent, int) else _SQUARES


@tc.function
def _moved(places, place):
    """An element's indices in the output."""
    return place[places[0]], place[places[1]], place[places[2]], place[places[3]]


@tc.function
def _replaced(across, a, b, c, row, col):
    """Indices in the input, with another one in the axis `across`."""
    return (
        row if across == 0 else a,
        row if across == 1 else b,
        row if across == 2 else c,
        col,
    )
