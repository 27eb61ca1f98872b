"""Arrays whose elements lie where a layout puts them: a constant operand, or what kernels pass to one another.

A `Packed` is one-dimensional memory. Its class is its type: there is one for each element type, shape and
layout, so that compiled code tells by one comparison whether it fits a parameter. `taskc.device.array` makes a
copy on a device of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, TensorType

Array = np.ndarray[Any, Any]

_LINE = 64


class Laid:
    """Memory whose elements lie where the layout of `type` puts them, of the CPU or of a device."""

    __slots__ = ()

    type: TensorType


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an argument as a parameter has it, wherever its elements lie."""
    shape: tuple[int, ...] = value.type.shape if isinstance(value, Laid) else value.shape
    return shape


class Packed(np.ndarray[Any, Any], Laid):
    """What `pack` and `empty` make; `unpack` gives the elements in their usual order."""

    @property
    def is_whole(self) -> bool:
        """It is the memory that was made, and no slice of it nor what NumPy has computed from it."""
        dense = self.flags.c_contiguous and self.flags.aligned
        slots = slots_of(self.type.shape, _layout(self.type))
        return dense and self.shape == (slots,) and self.dtype == self.type.dtype.numpy

    def unpack(self) -> Array:
        places = places_of(self.type.shape, _layout(self.type))
        return np.asarray(self)[places].reshape(self.type.shape)


def pack(array: Array, type: TensorType) -> Packed:
    """A copy of an array with its elements where `type`'s layout puts them."""
    if type.layout is None:
        raise TypeError(f"{type} has no layout to pack an array into; say {type}.laid(…)")
    if any(not isinstance(extent, int) for extent in type.shape):
        raise TypeError(f"an array is packed for a shape that is known, and {type} isn't")
    array = np.asarray(array)
    if array.shape != type.shape or array.dtype != type.dtype.numpy:
        raise TypeError(f"{array.dtype}[{', '.join(map(str, array.shape))}] is no {type}")
    places = places_of(type.shape, _layout(type))
    made = empty(type)
    made[places] = array.reshape(-1)
    assert isinstance(made, Packed)
    return made


def empty(type: TensorType) -> Array:
    """Memory for a type, uninitialized; where it has a layout, zeros, since that may have more places than elements."""
    dtype = type.dtype.numpy
    if type.layout is None:
        return aligned(np.empty, prod(type.shape), dtype).reshape(type.shape)
    return aligned(np.zeros, slots_of(type.shape, _layout(type)), dtype).view(packed_class(type))


def aligned(make: Callable[..., Array], count: int, dtype: np.dtype[Any]) -> Array:
    """What begins where a cache line does: a vector that lies in two lines takes two accesses."""
    size = count * dtype.itemsize
    memory = make(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype)


def packed_class(described: TensorType) -> type[Packed]:
    """The class of what is packed as a type."""
    key = described.dtype, described.shape, _layout(described)
    found = _classes.get(key)
    if found is None:
        made = type("Packed", (Packed,), {"type": described, "__module__": __name__})
        # Whoever comes second takes what the first has put there.
        found = _classes.setdefault(key, made)
    return found


_Key = tuple[DType, tuple[Any, ...], Mapping]
_classes: dict[_Key, type[Packed]] = {}


def _layout(type: TensorType) -> Mapping:
    assert isinstance(type.layout, Mapping)
    return type.layout


def slots_of(shape: tuple[Any, ...], layout: Mapping) -> int:
    """How many elements the memory has: whole layouts follow one another along the first extent."""
    count = layout.slots
    for size, extent in zip(shape, layout.shape, strict=True):
        count *= -(-size // extent)
    return count


def places_of(shape: tuple[int, ...], layout: Mapping) -> Array:
    """Where each element lies, row-major."""
    tasks = np.indices(shape).reshape(len(shape), -1).T
    extents = np.asarray(layout.shape)
    outer = tasks // extents
    number = np.zeros(len(tasks), np.int64)
    for dimension, count in enumerate(-(-np.asarray(shape) // extents)):
        number = number * count + outer[:, dimension]
    return np.asarray(number * layout.slots + layout.find(0, tasks - outer * extents))
