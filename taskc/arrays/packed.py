"""Arrays whose elements lie where a layout puts them: a constant operand, or what kernels pass to one another.

A `Packed` is one-dimensional memory, of bytes where the type is a sub-byte one, whose elements are packed without a
layout, too. A user's has its type by its class: there is one for each element type, shape
and layout, so that compiled code tells by one comparison whether it fits a parameter. `taskc.device.array` makes a
copy on a device of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.bits import from_bytes, into_bytes, shape_in_bytes, shape_of_elements
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Tensor
from taskc.ir.types import DType, Layout, TensorType

Array = np.ndarray[Any, Any]

_LINE = 64


class Laid:
    """Memory whose elements lie where the layout of `type` puts them, of the CPU or of a device."""

    __slots__ = ()

    type: TensorType


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an argument as a parameter has it, whatever its layout."""
    shape: tuple[int, ...] = value.type.shape if isinstance(value, Laid) else value.shape
    return shape


class Packed(np.ndarray[Any, Any], Laid):
    """A packed array, made by `pack` or `empty`; `unpack` returns the elements in their usual order."""

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole memory, and no slice of it or result of NumPy's."""
        dense = self.flags.c_contiguous and self.flags.aligned
        size, dtype = memory_of(self.type)
        return dense and self.shape == (size,) and self.dtype == dtype

    def unpack(self) -> Array:
        described, memory = self.type, np.asarray(self)
        if described.dtype.is_sub_byte:
            memory = from_bytes(memory, described.dtype, _slots(described))
        if described.layout is None:
            return memory.reshape(described.shape)
        made: Array = np.empty(described.shape, described.dtype.numpy)
        take(made, memory, _layout(described))
        return made


def memory_key(array: Array) -> object:
    """A key that views of the same elements share, as long as one of them exists."""
    return array.ctypes.data, array.dtype, array.shape, array.strides


def shared(packed: Packed) -> Packed:
    """An equal constant that another program has, or else this one: the programs of a model have the same weights."""
    memory = np.asarray(packed)
    step = max(1, len(memory) // _SAMPLES)
    key = packed.type, memory[::step].tobytes()
    known = _constants.get(key)
    if known is not None and np.array_equal(
        memory.view(np.uint8), np.asarray(known).view(np.uint8)
    ):
        return known
    _constants[key] = packed
    return packed


_SAMPLES = 1024  # elements by which candidates are found
_constants: WeakValueDictionary[object, Packed] = WeakValueDictionary()


def pack(array: Array, type: TensorType) -> Packed:
    """Copy an array into the layout of a type.

    Extents that aren't numbers are taken from the array. An array of a sub-byte type may be given as packed bytes, in
    row-major order.
    """
    if type.layout is None and not type.dtype.is_sub_byte:
        raise TypeError(f"{type} has no layout to pack an array into; say {type}.laid(…)")
    given = np.asarray(array)
    array = elements_of(given, type.dtype) if type.dtype.is_sub_byte else given
    if array.ndim == type.rank:
        pairs = zip(type.shape, array.shape, strict=True)
        shape = tuple(n if isinstance(n, int) else size for n, size in pairs)
        type = TensorType(type.dtype, shape, type.layout)
    if array.shape != type.shape or array.dtype != type.dtype.numpy:
        raise TypeError(f"{given.dtype}[{', '.join(map(str, given.shape))}] is no {type}")
    made = empty(type)
    assert isinstance(made, Packed)
    put_into(array, made)
    return made


def pack_rows(array: Array, type: TensorType) -> Array:
    """Elements of a sub-byte type, row-major, as bytes: an array of these, or memory where rows don't fill them."""
    made = pack(array, type)
    shape = made.type.shape
    is_whole = bool(shape) and shape[-1] * type.dtype.bits % 8 == 0
    return np.asarray(made).reshape(shape_in_bytes(shape, type.dtype)) if is_whole else made


def put_into(array: Array, made: Packed) -> None:
    """Copy an array's elements into packed memory."""
    described, memory = made.type, np.asarray(made)
    if not described.dtype.is_sub_byte:
        put(array, memory, _layout(described))
        return
    if described.layout is not None:
        each = np.zeros(_slots(described), array.dtype)
        put(array, each, _layout(described))
        array = each
    memory[...] = into_bytes(array, described.dtype)


def packed_argument(array: Array, type: TensorType) -> Packed:
    """A call's argument of a sub-byte type; row-major packed bytes aren't copied."""
    if array.dtype == np.uint8 and type.layout is None:
        made = array.reshape(-1).view(Packed)
        made.type = type
        return made
    made = laid_memory(np.zeros, type)
    put_into(elements_of(array, type.dtype), made)
    return made


def part_of(memory: Packed, shape: tuple[int, ...], start: int) -> Packed:
    """Elements of a sub-byte type that begin with a byte, row-major, as memory of their own type."""
    dtype = memory.type.dtype
    first = dtype.bytes_of(start)
    return packed_argument(
        np.asarray(memory)[first : first + dtype.bytes_of(prod(shape))], TensorType(dtype, shape)
    )


def elements_of(array: Array, dtype: DType) -> Array:
    """The elements of a sub-byte type, each in a byte of its own; packed bytes are unpacked."""
    if array.dtype != np.uint8:
        return array
    shape = shape_of_elements(array.shape, dtype)
    if shape is None:
        raise TypeError(
            f"rows of {array.shape[-1:]} bytes hold no whole number of elements of {dtype}"
        )
    return from_bytes(np.ascontiguousarray(array), dtype, prod(shape)).reshape(shape)


def empty(type: TensorType) -> Array:
    """Memory for a type, uninitialized; where it has a layout, zeros, since that may have more places than elements."""
    size, dtype = memory_of(type)
    if type.layout is None and not type.dtype.is_sub_byte:
        return aligned(np.empty, size, dtype).reshape(type.shape)
    return aligned(np.zeros, size, dtype).view(packed_class(type))


def laid_memory(make: Callable[..., Array], type: TensorType) -> Packed:
    """Memory for one call, by np.zeros or np.empty.

    The array holds its type itself: a class for each size that occurs would never be freed.
    """
    memory = aligned(make, *memory_of(type)).view(Packed)
    memory.type = type
    return memory


def aligned(make: Callable[..., Array], count: int, dtype: np.dtype[Any]) -> Array:
    """An array that starts at a cache line: a vector in two lines would take two accesses."""
    size = count * dtype.itemsize
    memory = make(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype)


def packed_class(described: TensorType) -> type[Packed]:
    """The class of arrays that are packed as a type."""
    key = described.dtype, described.shape, described.layout
    known = _classes.get(key)
    if known is None:
        new = type("Packed", (Packed,), {"type": described, "__module__": __name__})
        known = _classes.setdefault(key, new)  # all threads use the first one
    return known


_Key = tuple[DType, tuple[Any, ...], Layout | None]
_classes: dict[_Key, type[Packed]] = {}


def _layout(type: TensorType) -> Mapping:
    assert isinstance(type.layout, Mapping)
    return type.layout


def _slots(described: TensorType) -> int:
    """The number of elements in the memory for a type."""
    if described.layout is None:
        return prod(described.shape)
    return slots_of(described.shape, _layout(described))


def memory_of(described: TensorType) -> tuple[int, np.dtype[Any]]:
    """The number of items in the memory for a type, and their dtype."""
    if described.dtype.is_sub_byte:
        return described.dtype.bytes_of(_slots(described)), np.dtype(np.uint8)
    return _slots(described), described.dtype.numpy


def slots_of(shape: tuple[Any, ...], layout: Mapping) -> int:
    """The number of elements in the memory: whole layouts follow one another along the first extent."""
    count = layout.slots
    for size, extent in zip(shape, layout.shape, strict=True):
        count *= -(-size // extent)
    return count


def put(array: Array, memory: Array, layout: Mapping) -> None:
    """Copy an array's elements to their places in a layout; places of whole layouts beyond its end get zeros."""
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
    """Copy elements from their places in a layout into a contiguous array."""
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
    """The place of each element in memory, in row-major order of elements."""
    tasks = np.indices(shape).reshape(len(shape), -1).T
    extents = np.asarray(layout.shape)
    outer = tasks // extents
    number = np.zeros(len(tasks), np.int64)
    for dimension, count in enumerate(-(-np.asarray(shape) // extents)):
        number = number * count + outer[:, dimension]
    return np.asarray(number * layout.slots + layout.find(0, tasks - outer * extents))


# --- Arguments whose parameters have a layout, in it during a call ------------------------------


@contextmanager
def packed(
    parameters: Sequence[Tensor | ir.Variable], values: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """The values as compiled code takes them; what it wrote is in `values` at the end.

    A program's are put into their layouts once for all of its kernels, which find that nothing is left to do.
    """
    passed = []
    written: list[tuple[Any, Any, Mapping]] = []
    for parameter, value in zip(parameters, values, strict=True):
        has_layout = isinstance(parameter, Tensor) and parameter.layout is not None
        if not has_layout or isinstance(value, Laid):
            passed.append(value)
            continue
        assert isinstance(parameter, Tensor)
        assert parameter.layout is not None
        described = TensorType(parameter.dtype, value.shape, parameter.layout)
        memory = laid_memory(np.zeros, described)
        if parameter.role != "out":
            put_into(value, memory)
        if parameter.role != "in":
            written.append((value, memory, parameter.layout))
        passed.append(memory)
    yield passed
    for value, memory, layout in written:
        take(value, np.asarray(memory), layout)


@contextmanager
def unpacked(
    parameters: Sequence[Tensor | ir.Variable], values: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """The values with their elements in the usual order; what was written is in `values` at the end."""
    passed = [value.unpack() if isinstance(value, Packed) else value for value in values]
    yield passed
    for parameter, value, found in zip(parameters, values, passed, strict=True):
        if isinstance(value, Packed) and isinstance(parameter, Tensor) and parameter.role != "in":
            put_into(found, value)
