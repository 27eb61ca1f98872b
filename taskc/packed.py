"""Arrays whose elements lie where a layout puts them: a constant operand, or what kernels pass to one another.

A `Packed` is one-dimensional memory. A user's has its type by its class: there is one for each element type, shape
and layout, so that compiled code tells by one comparison whether it fits a parameter. `taskc.device.array` makes a
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
        made: Array = np.empty(self.type.shape, self.type.dtype.numpy)
        take(made, np.asarray(self), _layout(self.type))
        return made


def pack(array: Array, type: TensorType) -> Packed:
    """A copy of an array with its elements where `type`'s layout puts them.

    Extents that aren't numbers are the array's.
    """
    if type.layout is None:
        raise TypeError(f"{type} has no layout to pack an array into; say {type}.laid(…)")
    array = np.asarray(array)
    if array.ndim == type.rank:
        pairs = zip(type.shape, array.shape, strict=True)
        shape = tuple(n if isinstance(n, int) else size for n, size in pairs)
        type = TensorType(type.dtype, shape, type.layout)
    if array.shape != type.shape or array.dtype != type.dtype.numpy:
        raise TypeError(f"{array.dtype}[{', '.join(map(str, array.shape))}] is no {type}")
    made = empty(type)
    assert isinstance(made, Packed)
    put(array, np.asarray(made), _layout(type))
    return made


def empty(type: TensorType) -> Array:
    """Memory for a type, uninitialized; where it has a layout, zeros, since that may have more places than elements."""
    dtype = type.dtype.numpy
    if type.layout is None:
        return aligned(np.empty, prod(type.shape), dtype).reshape(type.shape)
    return aligned(np.zeros, slots_of(type.shape, _layout(type)), dtype).view(packed_class(type))


def laid_memory(make: Callable[..., Array], type: TensorType) -> Packed:
    """Memory for one call, by np.zeros or np.empty.

    It has its type itself: a class of its own would be kept, one for each size that occurs.
    """
    memory = aligned(make, slots_of(type.shape, _layout(type)), type.dtype.numpy).view(Packed)
    memory.type = type
    return memory


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


def put(array: Array, memory: Array, layout: Mapping) -> None:
    """Copies an array's elements to where a layout has them; places of whole layouts behind its end get zeros."""
    found = _digits(memory, array.shape, layout)
    if found is None:
        memory[places_of(array.shape, layout)] = array.reshape(-1)
        return
    whole, digits = found
    if whole != array.shape:
        inside = array
        array = np.zeros(whole, array.dtype)
        array[tuple(map(slice, inside.shape))] = inside
    digits[...] = array.reshape(digits.shape)


def take(array: Array, memory: Array, layout: Mapping) -> None:
    """Copies into a contiguous array what a layout has for it somewhere in memory."""
    found = _digits(memory, array.shape, layout)
    if found is None:
        array[...] = memory[places_of(array.shape, layout)].reshape(array.shape)
        return
    whole, digits = found
    if whole == array.shape:
        array.reshape(digits.shape)[...] = digits
    else:
        array[...] = digits.reshape(whole)[tuple(map(slice, array.shape))]


def _digits(
    memory: Array, shape: tuple[int, ...], layout: Mapping
) -> tuple[tuple[int, ...], Array] | None:
    """The shape rounded up to whole layouts, and the memory with an axis for each digit of an element's coordinates.

    f32[6, 8].laid(repeat(1, 2) * repeat(6, 4))     memory.reshape(1, 1, 2, 6, 4).transpose(0, 3, 1, 2, 4)

    Row-major, the axes count through the elements in their usual order: so NumPy copies all of them at once. None
    for a layout that isn't composed, or has places without an element between others.
    """
    modes, rank = layout.slot_modes, len(shape)
    if modes is None or layout.iterated != layout.shape:
        return None
    counts = [-(-size // extent) for size, extent in zip(shape, layout.shape, strict=True)]
    order: list[int] = []
    for dimension, extent in enumerate(layout.shape):
        order.append(dimension)
        own = [number for number, mode in enumerate(modes) if mode.dimension == dimension]
        for number in sorted(own, key=lambda number: -modes[number].stride):
            if modes[number].size * modes[number].stride != extent:
                return None
            order.append(rank + number)
            extent = modes[number].stride
        if extent != 1:
            return None
    sizes = [mode.size for mode in modes]
    whole = tuple([count * n for count, n in zip(counts, layout.shape, strict=True)])
    return whole, memory.reshape(*counts, *sizes).transpose(order)


def places_of(shape: tuple[int, ...], layout: Mapping) -> Array:
    """Where each element lies, row-major."""
    tasks = np.indices(shape).reshape(len(shape), -1).T
    extents = np.asarray(layout.shape)
    outer = tasks // extents
    number = np.zeros(len(tasks), np.int64)
    for dimension, count in enumerate(-(-np.asarray(shape) // extents)):
        number = number * count + outer[:, dimension]
    return np.asarray(number * layout.slots + layout.find(0, tasks - outer * extents))
