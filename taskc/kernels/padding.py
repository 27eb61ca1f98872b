"""Matrices whose rows begin at multiples of 16 bytes, as wide accesses and bulk copies want them."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, repeat, spatial

_BYTES = 16


def pitch(extent: Any, dtype: DType) -> Any:
    """The elements from one row to the next; sizes that aren't known yet stay as they are."""
    if not isinstance(extent, int):
        return extent
    unit = _BYTES // dtype.nbytes
    return -(-extent // unit) * unit


def pad(rows: Any, columns: int, dtype: DType, wide: int | None = None) -> tc.KernelDefinition:
    """A copy of a matrix with zeros behind its rows, up to `wide`, or else their pitch."""
    wide = wide or pitch(columns, dtype)
    own = repeat(1, 8) * spatial(8, 32)
    outside = False if dtype is tc.boolean else 0

    @tc.kernel(workers=own.workers)
    def pad(x: dtype[rows, columns], y: tc.out[dtype[rows, wide]]):
        for row, col in tc.tiles((rows, wide), by=own.shape):
            for i, j in own:
                if row + i < rows and col + j < wide:
                    if col + j < columns:
                        y[row + i, col + j] = x[row + i, col + j]
                    else:
                        y[row + i, col + j] = outside

    return pad
