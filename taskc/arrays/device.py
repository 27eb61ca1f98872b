"""Arrays of a call in the CPU's memory, as NumPy's arrays, or on a device: where they start, and whether they overlap.

No function here reads elements.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from taskc.ir.types import TensorType

_OVERLAP_WORK = 10_000  # steps that the exact test of overlap may take, of strided arrays


class DeviceArray(Protocol):
    """The attributes of an array on a device that calls use."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    is_contiguous: bool
    is_read_only: bool

    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> int: ...
    def copy(self) -> Any: ...


class Device(Protocol):
    """The device on which the arrays of a call lie."""

    @property
    def name(self) -> str: ...
    def view(self, value: Any) -> Any: ...
    def holds(self, array: Any) -> bool: ...
    def packed(self, array: Any, described: TensorType) -> Any: ...
    def empty(self, described: TensorType) -> Any: ...
    def empty_tensor(self, described: TensorType) -> Any: ...


AnyArray: TypeAlias = "np.ndarray[Any, Any] | DeviceArray"


def is_placed(array: AnyArray) -> bool:
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous and array.flags.aligned
    return array.is_contiguous


def is_read_only(array: AnyArray) -> bool:
    return not array.flags.writeable if isinstance(array, np.ndarray) else array.is_read_only


def start_of(array: AnyArray) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.pointer


def overlap(a: AnyArray, b: AnyArray) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        (low, high), (other_low, other_high) = _reach(a), _reach(b)
        return a.size > 0 and b.size > 0 and low < other_high and other_low < high
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _reach(array: AnyArray) -> tuple[int, int]:
    """The first address of an array and the end of its last element; gaps between are included."""
    start = start_of(array)
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
    return start + low, start + high + array.dtype.itemsize
