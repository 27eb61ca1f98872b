"""Bank conflicts: the cycles that shared memory takes for an access of a warp.

`layout` chooses layouts by them, and the simulator reports them and gives advice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.ir.fragments import UNIT, swizzle_of
from taskc.ir.mapping import Mapping, repeat
from taskc.ir.nodes import SHARED, Swizzle, Tensor

Array: TypeAlias = npt.NDArray[Any]

WORD = 4  # bytes of a bank
_NOTHING = np.iinfo(np.int64).max


def bank_cycles(addresses: Array, width: int, banks: int, active: Array | None = None) -> Array:
    """The cycles of each group of lanes that are served at the same time, [group, access].

    addresses  the first byte that a lane takes, [lane, access]
    width      how many bytes a lane takes; of 8 and 16 a half and a quarter of a warp are served at a time
    active     the lanes that take part, in all accesses; a group of none of these takes no cycle
    """
    count, accesses = addresses.shape
    words = max(width // WORD, 1)
    served = max(min(banks // words, count), 1)
    groups = -(-count // served)
    touched = np.full((groups * served, accesses, words), _NOTHING)
    lanes = slice(count) if active is None else np.flatnonzero(active)
    touched[lanes] = addresses[lanes][..., None] // WORD + np.arange(words)
    # A row has the words of one group and access: each counts once, in its bank.
    touched = touched.reshape(groups, served, accesses, words).transpose(0, 2, 1, 3)
    touched = np.sort(touched.reshape(groups * accesses, -1), axis=1)
    counted = touched != _NOTHING
    counted[:, 1:] &= touched[:, 1:] != touched[:, :-1]
    bank = np.arange(len(touched))[:, None] * banks + touched % banks
    counts = np.bincount(bank[counted], minlength=len(touched) * banks)
    cycles: Array = counts.reshape(groups, accesses, banks).max(axis=2)
    return cycles


def swizzled(swizzle: Swizzle | None, offsets: Array) -> Array:
    """The physical offsets of elements at these offsets of the layout."""
    if swizzle is None:
        return offsets
    mask = (1 << swizzle.bits) - 1
    moved: Array = offsets ^ (((offsets >> swizzle.shift) & mask) << swizzle.base)
    return moved


# A panel has the widest lines that a swizzle supports; it is one box of a bulk copy.


ATOM = 8  # lines that a swizzle distinguishes


def panel_layout(shape: tuple[int, ...], line: int) -> Mapping:
    """Panels of `line` columns one after the other, each row-major."""
    *outer, rows, columns = shape
    ones = (1,) * len(outer)
    return repeat(*outer, 1, columns // line) * repeat(*ones, rows, line)


def line_of(tensor: Tensor) -> int | None:
    """The columns of a tensor's panels: all, if it is row-major; None if it has no panels."""
    shape = tuple(n for n in tensor.shape if isinstance(n, int))
    if tensor.layout is None:
        return shape[-1]
    modes = tensor.layout.slot_modes
    if not modes or len(shape) < 2 or modes[-1].dimension != len(shape) - 1:
        return None
    line = modes[-1].size
    is_whole = shape[-1] % line == 0 and tensor.layout == panel_layout(shape, line)
    return line if is_whole else None


def in_panels(tensor: Tensor) -> Tensor | None:
    """Shared memory in panels as wide as a swizzle; None if no width divides its rows."""
    if tensor.scope != SHARED or tensor.layout is not None or tensor.swizzle is not None:
        return tensor
    shape = tuple(n for n in tensor.shape if isinstance(n, int))
    size = tensor.dtype.nbytes
    width = next((w for w in (8 * UNIT, 4 * UNIT, 2 * UNIT, UNIT) if shape[-1] * size % w == 0), 0)
    if len(shape) < 2 or not width or shape[-2] % ATOM:
        return None
    line = width // size
    layout = None if line == shape[-1] else panel_layout(shape, line)
    return replace(tensor, layout=layout, swizzle=swizzle_of(width, tensor.dtype))


def slots_of(tensor: Tensor, count: int) -> Tensor:
    """`count` tensors of one form, one after the other, such as a ring's slots."""
    layout = tensor.layout
    if layout is not None:
        assert layout.slot_modes is not None
        lifted = [
            mode if mode.dimension is None else mode._replace(dimension=mode.dimension + 1)
            for mode in layout.slot_modes
        ]
        one = Mapping.from_modes((1, *layout.shape), [], lifted)
        layout = repeat(count, *(1 for _ in layout.shape)) * one
    return replace(tensor, shape=(count, *tensor.shape), layout=layout)
