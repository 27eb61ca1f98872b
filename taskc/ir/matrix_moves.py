"""The moves between shared memory and a tile that matrix-move instructions can do, and the lanes that name lines.

The lanes that name the lines of a matrix are not the lanes that hold its elements: both are mappings of the
same tasks. The tile's owners hold the elements. The naming lanes follow from them: the n-th 4 bytes of all
lanes, in the order of their registers, form one matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from taskc.ir.mapping import Mapping, Mode
from taskc.ir.nodes import SHARED, TILE, Expression, Move, Read, Tensor, Variable
from taskc.ir.rewrite import walk
from taskc.ir.target import MATRIX_MOVES, WARP, MatrixMove

LINES = 8
LINE_BYTES = 16


def memory_side(move: Move) -> tuple[Tensor, tuple[Expression, ...]] | None:
    """A move's place in shared memory, if its other side is a whole tile of their owners."""
    value = move.value
    if not isinstance(value, Read) or move.guard is not None or len(move.variables) != 2:
        return None
    sides = [(move.tensor, move.indices), (value.tensor, value.indices)]
    if sides[0][0].scope == SHARED:
        sides.reverse()
    (tile, elements), memory = sides
    is_whole = all(a is b for a, b in zip(elements, move.variables, strict=False))
    if tile.scope != TILE or memory[0].scope != SHARED or len(elements) != 2 or not is_whole:
        return None
    is_same = memory[0].dtype == tile.dtype and move.by == tile.owners
    return memory if is_same and tile.owners is not None else None


def axis_along(indices: tuple[Expression, ...], variables: tuple[Variable, ...]) -> int | None:
    """The move's variable that runs along the lines of memory, if just one does."""
    *leading, last = (list(walk(index)) for index in indices)
    axes = [n for n, variable in enumerate(variables) if any(part is variable for part in last)]
    if len(axes) != 1:
        return None
    along = variables[axes[0]]
    return None if any(part is along for index in leading for part in index) else axes[0]


def line_namers(owners: Mapping, axis: int, row: MatrixMove, tensor: Tensor) -> Mapping | None:
    """The mapping of lanes to the lines they name: a worker's slots are the elements of its lines in order.

    None where the instruction doesn't move the elements to, or from, their owners. `axis` is the
    dimension along which lines lie.
    """
    line = LINE_BYTES // tensor.dtype.nbytes
    fragment = row.fragment(tensor.dtype) if row.fits(tensor.dtype) else None
    if fragment is None or owners.workers % WARP or owners.slots % fragment.slots:
        return None
    if not owners.is_composed or owners.limit is not None:
        return None
    shape = (owners.workers // WARP, WARP, -1, fragment.slots, 2)
    held = owners.tasks[..., [1 - axis, axis]].reshape(shape)
    first = held[:, :1, :, :1]
    if not np.array_equal(held - first, np.broadcast_to(fragment.tasks[:, None], held.shape)):
        return None
    if (first[..., 1] % line).any():
        return None
    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    warps, _ = _parted(owners.worker_modes, WARP) or (None, None)
    words, _ = _parted(owners.slot_modes, fragment.slots) or (None, None)
    if warps is None or words is None:
        return None
    groups, matrices = _parted(words, row.count) or (None, None)
    if groups is None or matrices is None:
        return None
    idle = Mode(None, WARP // (LINES * row.count), 0)
    return Mapping.from_modes(
        owners.shape,
        (*warps, idle, *matrices, Mode(1 - axis, LINES, 1)),
        (*groups, Mode(axis, line, 1)),
    )


def named_by_lines(move: Move) -> Move:
    """The move with the workers that name the lines as those that do it."""
    side = memory_side(move)
    assert side is not None
    assert move.by is not None
    axis = axis_along(side[1], move.variables)
    assert axis is not None
    namers = line_namers(move.by, axis, MATRIX_MOVES[str(move.how)], side[0])
    return replace(move, by=namers, how=None)


def _parted(modes: Iterable[Mode], size: int) -> tuple[list[Mode], list[Mode]] | None:
    """Split off the fastest digits, of so many values in all; None if a digit straddles the boundary."""
    slow, fast = list(modes), list[Mode]()
    while size > 1:
        if not slow:
            return None
        mode = slow.pop()
        taken_size = min(size, mode.size)
        if size % taken_size or mode.size % taken_size:
            return None
        fast.insert(0, mode._replace(size=taken_size))
        if mode.size > taken_size:
            slow.append(
                mode._replace(size=mode.size // taken_size, stride=mode.stride * taken_size)
            )
        size //= taken_size
    return slow, fast
