"""Bank conflicts: how many cycles shared memory takes for an access of a warp.

`layout` chooses the layout of a tensor by it, and the simulator reports and advises by it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.ir.nodes import Swizzle

Array: TypeAlias = npt.NDArray[Any]

WORD = 4  # bytes of a bank
_NOTHING = np.iinfo(np.int64).max


def bank_cycles(addresses: Array, width: int, banks: int, active: Array | None = None) -> Array:
    """The cycles of each group of lanes that are served at a time, [group, access].

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
    """Where the elements lie that a layout alone would put at these offsets."""
    if swizzle is None:
        return offsets
    mask = (1 << swizzle.bits) - 1
    moved: Array = offsets ^ (((offsets >> swizzle.shift) & mask) << swizzle.base)
    return moved
