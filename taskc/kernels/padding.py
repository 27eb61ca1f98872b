"""Matrices whose rows begin at multiples of 16 bytes, as wide accesses and bulk copies want them."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, Machine
from taskc.kernels.owners import owners_of_boxes, width
from taskc.kernels.signatures import ASSUMED_MANY, known

_BYTES = 16
_WORD = 4


def pitch(extent: Any, dtype: DType) -> Any:
    """The elements from one row to the next; sizes that aren't known yet stay as they are."""
    if not isinstance(extent, int):
        return extent
    unit = _BYTES // dtype.nbytes
    return -(-extent // unit) * unit


def pad(
    rows: Any, columns: int, dtype: DType, machine: Machine, wide: int | None = None
) -> tc.KernelDefinition:
    """A copy of a matrix with zeros behind its rows, up to `wide`, or else their pitch.

    A worker of a short row has whole accesses of what is stored, so that none is left without work. Along a
    long one neighbours read neighbouring words: elements that begin anywhere are read one by one.
    """
    pitched = wide or pitch(columns, dtype)
    access = width(pitched, dtype)
    if pitched >= access * machine.lanes:
        access = max(1, _WORD // dtype.nbytes)
    own = owners_of_boxes((known(rows, ASSUMED_MANY), pitched), access, machine)
    outside = False if dtype is tc.boolean else 0

    @tc.kernel(workers=own.workers)
    def pad(x: tc.typed[dtype[rows, columns]], y: tc.out[dtype[rows, pitched]]) -> None:
        for row, col in tc.tiles((rows, pitched), by=own.shape):
            part = tc.tile(dtype, own)
            for i, j in own:
                part[i, j] = (
                    x[row + i, col + j] if row + i < rows and col + j < columns else outside
                )
            for i, j in own:
                if row + i < rows and col + j < pitched:
                    y[row + i, col + j] = part[i, j]

    return pad
