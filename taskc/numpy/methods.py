"""Parts and shapes of arrays: what indexing, transposing and reshaping return are views.

    x[1:, ::2]           a view: a basic index
    x[i, j]              an element: NumPy's scalar if the value is known
    x[places]            noted: integer arrays along neighbouring axes gather
    x[mask] = 0          noted: a choice

A choice by bools has as many elements as the bools decide, so that their value is needed, except where one number is
written. Writing at places given by arrays is NumPy's work.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

from taskc.numpy import rows
from taskc.numpy.array import (
    NUMBERS,
    Array,
    Known,
    Order,
    Reshape,
    View,
    adopted,
    known,
    method,
    plain,
    small,
    taken,
    view,
    wrapped,
)
from taskc.numpy.noting import (
    array,
    as_operand,
    came_around,
    copied,
    fitted,
    note,
    note_reshape,
    replace,
    updated,
    writable,
)
from taskc.numpy.rows import SUPPORTED
from taskc.numpy.segment import recorders
from taskc.numpy.shapes import Shape, axes_of, basic, broadcast, part_of, reshaped

# --- Indices ----------------------------------------------------------------------------------


@method
def __getitem__(self: Array, key: Any) -> Any:  # noqa: N807
    entries = basic(key)
    if entries is None:
        return _gathered(self, key if type(key) is tuple else (key,))
    memory = self._value
    if memory is not None and not recorders:
        value = memory[entries]
        return view(self, entries, value.shape) if type(value) is np.ndarray else value
    part = part_of(self._shape, entries)
    if not part.is_element:
        return view(self, entries, part.shape, part)
    if self._dtype not in SUPPORTED:
        return adopted(np.asarray(known(self, "NumPy")[entries]))
    return note(rows.part_row(part.pattern, self._dtype), (self,), (), part.numbers)


@method
def __setitem__(self: Array, key: Any, value: Any) -> None:  # noqa: N807
    entries = basic(key)
    if entries is None:
        return _scattered(self, key if type(key) is tuple else (key,), value)
    if not recorders:
        memory = self._value if type(self) is Array and type(value) in NUMBERS else None
        if memory is not None and getrefcount(memory) <= 3 and memory.base is None:
            memory[entries] = value  # the shortest way for a number
            return None
        del memory  # it would count
        memory = writable(self)  # before a view of it is made
        if memory is None and came_around():
            memory = writable(self)
        given = None if memory is None else small(value)
        if given is None and memory is not None and self._dtype not in SUPPORTED:
            given = plain(value)
        if memory is not None and given is not None:
            memory[entries] = given
            return None
    part = part_of(self._shape, entries)
    value = as_operand(value, self._dtype)
    if part.is_element and value._shape and not (value.size == 1 and self._dtype.kind == "b"):
        raise ValueError("setting an array element with a sequence.")
    while value.ndim > len(part.shape) and value._shape[0] == 1:
        value = value[0] if value.ndim > 1 else value.reshape(())
    if broadcast(part.shape, value._shape) != part.shape:
        raise ValueError(
            f"could not broadcast input array from shape {value._shape} into shape {part.shape}"
        )
    if part.shape == self._shape and all(kind == 1 for kind in part.pattern):
        return replace(self, fitted(value, self._shape, self._dtype))
    return replace(self, updated(self, entries, value))


def _gathered(x: Array, key: tuple[Any, ...]) -> Any:
    """x[key], where a part of the key is an array or a list."""
    key = tuple([array(entry) if isinstance(entry, list | np.ndarray) else entry for entry in key])
    places = [n for n, entry in enumerate(key) if isinstance(entry, Array)]
    chosen = [key[n] for n in places]
    is_plain = all(entry == slice(None) for n, entry in enumerate(key) if n not in places)
    if (
        not is_plain or x.dtype not in SUPPORTED or not places or places != [*range(places[0], places[-1] + 1)]
        or any(entry.dtype.kind not in "iu" for entry in chosen) or len(key) > x.ndim
        or (small(x) is not None and not recorders and all(small(entry) is not None for entry in chosen))
    ):  # fmt: skip
        return wrapped(known(x, "index")[tuple(map(plain, key))])
    for entry, extent in zip(chosen, x.shape[places[0] :], strict=False):
        if entry._value is not None:
            _check(entry._value, extent, places[0])
    first, count = places[0], len(places)
    shape = broadcast(*[entry.shape for entry in chosen])
    whole = (*x.shape[:first], *shape, *x.shape[first + count :])
    return note(rows.gather_row(first, count, x.dtype), (x, *chosen), whole)


def _check(places: Any, extent: int, axis: int) -> None:
    wrong = places[(places < -extent) | (places >= extent)] if places.size else places
    if wrong.size:
        raise IndexError(
            f"index {wrong.flat[0]} is out of bounds for axis {axis} with size {extent}"
        )


def _scattered(x: Array, key: tuple[Any, ...], value: Any) -> None:
    """x[key] = value, where a part of the key is an array or a list."""
    mask = key[0]
    is_choice = (
        len(key) == 1
        and isinstance(mask, Array | np.ndarray)
        and mask.dtype == bool
        and np.ndim(value) == 0
        and mask.shape == x.shape[: mask.ndim]
    )
    if is_choice and (small(x) is None or recorders):
        mask = mask if isinstance(mask, Array) else array(mask)
        number = value if isinstance(value, Array) else adopted(np.array(value, x.dtype))
        if x.dtype in SUPPORTED and number.dtype in SUPPORTED:
            mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
            row = rows.where_row((x.dtype, x.dtype))
            assert row is not None
            return replace(x, note(row, (mask, number, x), x.shape))
    whole = known(x, "setitem").copy()
    whole[tuple(map(plain, key))] = plain(value)
    return replace(x, adopted(whole))


# --- Shapes -----------------------------------------------------------------------------------


@method
def transpose(self: Array, *axes: Any) -> Array:
    rank = len(self._shape)
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    order = tuple(range(rank))[::-1] if order is None or not axes else tuple(order)
    places = np.lib.array_utils.normalize_axis_tuple(order, rank)
    if len(places) != rank:
        raise ValueError("axes don't match array")
    return view(self, Order(places), tuple([self._shape[axis] for axis in places]))


@method
def swapaxes(self: Array, one: int, other: int) -> Array:
    order = [*range(len(self._shape))]
    order[one], order[other] = order[other], order[one]
    return self.transpose(order)


@method
def reshape(self: Array, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
    if order != "C":
        whole_array: Any = known(self, "reshape")
        return adopted(np.array(whole_array.reshape(*shape, order=order), order="C"))
    wanted = shape[0] if len(shape) == 1 else shape
    whole = reshaped(self._shape, wanted)
    if isinstance(self, View) and not _keeps_memory(self, whole):
        return note_reshape(self, whole)
    return view(self, Reshape(whole), whole)


@method
def ravel(self: Array, order: str = "C") -> Array:
    if isinstance(self, View) and not _memory_like(self).flags.c_contiguous:
        return copied(self).reshape(-1, order=order)
    return self.reshape(-1, order=order)


@method
def flatten(self: Array, order: str = "C") -> Array:
    return copied(self.reshape(-1, order=order))


@method
def squeeze(self: Array, axis: Any = None) -> Array:
    shape = self._shape
    axes = (
        axes_of(axis, len(shape))
        if axis is not None
        else [a for a, n in enumerate(shape) if n == 1]
    )
    if any(shape[a] != 1 for a in axes):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return self.reshape(tuple([n for a, n in enumerate(shape) if a not in axes]))


def _keeps_memory(self: View, shape: Shape) -> bool:
    """Whether NumPy's reshape of this part would share its memory."""
    try:
        _memory_like(self).reshape(shape, copy=False)
    except ValueError:
        return False
    return True


def _memory_like(self: Array) -> Known:
    """Memory without values, in which the view lies as NumPy's would."""
    if isinstance(self, View):
        return taken(_memory_like(self._base), self._how)
    return np.empty(self._shape, np.int8)


@method
def _set_shape(self: Array, shape: Any) -> None:
    replace(self, note_reshape(self, reshaped(self._shape, shape)))


# --- Copies, and NumPy's other methods --------------------------------------------------------


@method
def astype(self: Array, dtype: Any, *, copy: bool = True, **options: Any) -> Array:
    dtype = np.dtype(dtype)
    if dtype == self._dtype:
        return copied(self) if copy else self
    value = None if recorders else small(self)
    return (
        fitted(self, self._shape, dtype)
        if value is None
        else adopted(np.array(value, dtype, order="C"))
    )


@method
def copy(self: Array, order: str = "C") -> Array:
    return copied(self)


@method
def fill(self: Array, value: Any) -> None:
    self[...] = value


@method
def __reduce__(self: Array) -> Any:  # noqa: N807
    return array, (known(self, "pickle").copy(),)


_WRITES = {"partition", "put", "resize", "sort", "byteswap", "setfield"}


def _attribute(self: Array, name: str) -> Any:
    """NumPy's other attributes and methods: of the value, which is needed."""
    if name.startswith("__") or not hasattr(np.ndarray, name):
        raise AttributeError(f"an array has no attribute '{name}'", name=name, obj=self)
    value = known(self, name)
    if not callable(attribute := getattr(value, name)):
        return wrapped(attribute)

    def of_value(*args: Any, **options: Any) -> Any:
        whole = value.copy()
        result = getattr(whole, name)(
            *map(plain, args), **{n: plain(x) for n, x in options.items()}
        )
        if name in _WRITES:
            replace(self, adopted(whole))
        return wrapped(result)

    return of_value


setattr(Array, "__getattr__", _attribute)  # noqa: B010
setattr(Array, "__copy__", copied)  # noqa: B010
setattr(Array, "__deepcopy__", lambda self, memo: copied(self))  # noqa: B010
setattr(Array, "T", property(transpose))  # noqa: B010
setattr(Array, "mT", property(lambda self: self.swapaxes(-1, -2)))  # noqa: B010
