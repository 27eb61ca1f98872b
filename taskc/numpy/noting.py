"""Noting: an operation is appended to the thread's segment, with the line of the user's code.

    x * 2 + y            small known values: NumPy computes at once
    big * 2 + y          noted: two operations, whose arrays wait

Views are noted when an operation reads them. An update of a view is one of the array whose memory it shows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from sys import getrefcount
from typing import Any, cast

import numpy as np

from taskc.numpy import rows
from taskc.numpy.array import (
    SMALL,
    Array,
    Known,
    Order,
    Reshape,
    View,
    adopted,
    known,
    new,
    plain,
    root,
    small_values,
    wrapped,
)
from taskc.numpy.ending import end
from taskc.numpy.rows import SUPPORTED, Row, ufunc_row
from taskc.numpy.segment import MOST, UNROLLED, Segment, Site, here, recorders
from taskc.numpy.shapes import Shape, broadcast, part_of

frame_at = sys._getframe


class UnsupportedError(Exception):
    """A call that isn't noted: NumPy computes it."""


# --- Appending --------------------------------------------------------------------------------


def note(row: Row, inputs: tuple[Array, ...], shape: Shape, numbers: tuple[int, ...] = ()) -> Array:
    """Append an operation to the thread's segment."""
    site = site_of(frame_at(1))
    segment = opened(site)
    operands = tuple([number_in(segment, x, site) for x in inputs])
    return appended(segment, row, operands, shape, numbers, site)


def site_of(frame: Any) -> Site:
    """The user's line that a frame was called from."""
    while frame.f_globals.get("__package__") == "taskc.numpy":
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def opened(site: Site) -> Segment:
    """The thread's segment; one that has come around a loop ends before the first operation of the loop's body."""
    segment = here.segment
    count = len(segment.operations)
    if count >= UNROLLED and (
        segment.sites[0] == site
        or (count % UNROLLED == 0 and site in segment.sites)
        or count >= MOST
    ):
        end(segment, "loop")
        segment = here.segment
    return segment


def came_around(site: Site | None = None) -> bool:
    """Whether the thread's segment has come around a loop: it ended, so that small values may be known now."""
    segment = here.segment
    if len(segment.operations) < UNROLLED:
        return False
    return opened(site or site_of(frame_at(1))) is not segment and not recorders


def number_in(segment: Segment, x: Array, site: Site) -> int:
    """The number of an operand in a segment; a view is noted, unless the value of its base is still the same."""
    if isinstance(x, View):
        base = number_in(segment, x._base, site)
        if x._segment is not segment or x._seen != base:
            row, numbers = _reading(x)
            x._segment, x._seen, x._number = segment, base, len(segment.operations)
            _append(segment, row, (base,), numbers, site)
        return x._number
    if x._segment is segment:
        return x._number
    if x._segment is not None:  # another thread's
        end(x._segment, "thread")
    value = cast("Known", x._value)
    number = segment.places.get(id(value))
    if number is not None:
        return number
    if not value.flags.c_contiguous:
        value = x._value = np.ascontiguousarray(value)
    return segment.leaf(value)


def _reading(x: View) -> tuple[Row, tuple[int, ...]]:
    """The operation that takes a view from its base."""
    how, dtype = x._how, x._dtype
    if isinstance(how, Order):
        return rows.transpose_row(how.axes, dtype), ()
    if isinstance(how, Reshape):
        return rows.reshape_row(dtype), how.shape
    part = x._part or part_of(x._base._shape, how)
    return rows.part_row(part.pattern, dtype), part.numbers


def _append(
    segment: Segment, row: Row, operands: tuple[int, ...], numbers: tuple[int, ...], site: Site
) -> None:
    segment.numbers.extend(numbers)
    segment.operations.append((row, operands, len(numbers)))
    segment.sites.append(site)


def appended(
    segment: Segment,
    row: Row,
    operands: tuple[int, ...],
    shape: Shape,
    numbers: tuple[int, ...],
    site: Site,
) -> Array:
    own = new(Array)
    own._shape, own._dtype, own._segment, own._value = shape, row.dtype, segment, None
    operations = segment.operations
    own._number = len(operations)
    if numbers:
        segment.numbers.extend(numbers)
    operations.append((row, operands, len(numbers)))
    segment.sites.append(site)
    segment.arrays.append(own)
    return own


# --- Functions of elements --------------------------------------------------------------------

_WEAK = (int, float, complex)
_ROWS: dict[Any, tuple[Row | None, tuple[Any, ...]]] = {}  # by function and types


def computed(function: Any, values: Sequence[Any]) -> Any:
    """NumPy's result, at once."""
    result = function(*values)
    if type(result) is not np.ndarray:
        return result
    if result.ndim > 1 and not result.flags.c_contiguous:
        result = result.copy(order="C")
    own = new(Array)
    own._shape, own._dtype, own._segment, own._value = result.shape, result.dtype, None, result
    return own


def elements(ufunc: np.ufunc, *given: Any) -> Array:
    """A function of elements: noted, or NumPy's on small known values, or where there is no row."""
    values = small_values(given)
    if values is None and came_around():
        values = small_values(given)
    if values is not None and _is_small(values):
        return cast("Array", computed(ufunc, values))
    operands = [x if isinstance(x, Array) or type(x) in _WEAK else _operand(x) for x in given]
    types = tuple([x._dtype if isinstance(x, Array) else type(x) for x in operands])
    exponent = None
    if ufunc is np.power and type(given[1]) is int and 2 <= given[1] <= 4:
        exponent = given[1]
    row, wanted = row_of(ufunc, types, exponent)
    if row is None:
        return cast("Array", wrapped(ufunc(*map(plain, operands))))
    if exponent is not None and row is not row_of(ufunc, types)[0]:
        operands.pop()
    site = site_of(frame_at(1))
    segment = opened(site)
    numbers = tuple([
        number_in(segment, x, site) if isinstance(x, Array) else segment.leaf(np.asarray(x, to))
        for x, to in zip(operands, wanted, strict=False)
    ])  # fmt: skip
    shapes = {x._shape for x in operands if isinstance(x, Array)}
    shape = shapes.pop() if len(shapes) == 1 else broadcast(*shapes)
    return appended(segment, row, numbers, shape, (), site)


def _is_small(values: list[Any]) -> bool:
    """Whether the result of operands that broadcast is small, too."""
    if len(values) == 1:
        return True
    shapes = {value.shape for value in values if isinstance(value, np.ndarray)}
    return len(shapes) < 2 or is_small_together(*shapes)


@lru_cache(1 << 12)
def is_small_together(*shapes: Shape) -> bool:
    return bool(np.prod(broadcast(*shapes), dtype=np.int64) <= SMALL)


def row_of(
    ufunc: np.ufunc, types: tuple[Any, ...], exponent: int | None = None
) -> tuple[Row | None, tuple[Any, ...]]:
    """The row for operands of these types, or of a small power, and the types that Python's numbers get."""
    key = ufunc, types, exponent
    found = _ROWS.get(key)
    if found is None:
        row: Row | None = None
        wanted: tuple[Any, ...] = ()
        if all(isinstance(x, np.dtype) or x in _WEAK for x in types):
            row = ufunc_row(ufunc, types)
        if row is not None:
            wanted = ufunc.resolve_dtypes((*types, None))[:-1]
            if exponent is not None:
                row = rows.power_row(exponent, row.dtype) if row.dtype == types[0] else row
        found = _ROWS[key] = row, wanted
    return found


def _operand(x: Any) -> Array:
    if isinstance(x, np.ndarray | np.generic | list | tuple | int | float | complex):
        return array(x)
    raise TypeError(f"an operand is {type(x).__name__}, and no array or number")


# --- Values -----------------------------------------------------------------------------------


def array(
    value: Any, dtype: Any = None, *, copy: bool | None = True, order: Any = None, ndmin: int = 0
) -> Array:
    """An array of a copy of a value: an array of any library, nested lists or a number.

    order  is NumPy's, and ignored: arrays lie row by row
    """
    if isinstance(value, Array):
        result: Array = value if dtype is None else value.astype(dtype, copy=False)
        result = copied(result) if copy is not False and result is value else result
        return (
            result
            if result.ndim >= ndmin
            else result.reshape((1,) * (ndmin - result.ndim) + result._shape)
        )
    return adopted(np.array(_without_arrays(value), dtype, copy=True, order="C", ndmin=ndmin))


def _without_arrays(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)([_without_arrays(part) for part in value])
    return known(value, "list") if isinstance(value, Array) else value


def copied(self: Array) -> Array:
    """An array of the same value, which is written apart."""
    if self._segment is None and type(self) is Array:
        return adopted(cast("Known", self._value))
    memory = self._value
    is_small = memory is not None and memory.size <= SMALL and not recorders
    if is_small or self._dtype not in SUPPORTED:
        return adopted(np.array(known(self, "NumPy"), order="C"))
    if isinstance(self, View):
        site = site_of(frame_at(1))
        segment = here.segment  # the view belongs to the operation that reads it
        return _alias(segment, number_in(segment, self, site), self)
    return _alias(cast("Segment", self._segment), self._number, self)


def _alias(segment: Segment, number: int, like: Array) -> Array:
    """Another array of a noted value."""
    own = new(Array)
    own._shape, own._dtype, own._segment, own._value = like._shape, like._dtype, segment, None
    own._number = number
    segment.arrays.append(own)
    return own


def note_reshape(x: Array, shape: Shape) -> Array:
    """A copy in another shape."""
    if x._dtype not in SUPPORTED:
        return adopted(known(x, "NumPy").reshape(shape).copy())
    return note(rows.reshape_row(x._dtype), (x,), shape, shape)


def as_operand(x: Any, dtype: np.dtype[Any]) -> Array:
    """A value that is to be written to an array of this type."""
    if isinstance(x, Array):
        return x
    return adopted(np.array(x, None if isinstance(x, np.ndarray) else dtype, order="C"))


def fitted(x: Array, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """The value in a shape to which it broadcasts, and a type."""
    if dtype not in SUPPORTED or x._dtype not in SUPPORTED:
        return adopted(np.array(np.broadcast_to(plain(x), shape), dtype, order="C"))
    if x._shape != shape:
        x = note(rows.broadcast_row(x._dtype), (x,), shape, shape)
    return x if x._dtype == dtype else note(rows.cast_row(dtype), (x,), shape)


# --- Updates ----------------------------------------------------------------------------------

# References to memory that only its array has: that array's, our caller's and ours, and that of the call that counts.
_UNSHARED = 3


def writable(x: Array) -> Known | None:
    """The memory of a known value, which nobody else sees; None if that would need a large copy."""
    base = root(x) if type(x) is View else x
    memory = base._value
    if memory is None:
        return None
    if getrefcount(memory) > _UNSHARED or memory.base is not None:
        if memory.size > SMALL:
            return None
        memory = base._value = memory.copy(order="C")
    return memory if base is x else x._value


def replace(self: Array, value: Array) -> None:
    """Give an array another value of its shape and type; a view writes through to its base."""
    if isinstance(self, View):
        base, how = self._base, self._how
        if isinstance(how, Order):
            back = tuple([how.axes.index(axis) for axis in range(len(how.axes))])
            value = copied(value.transpose(back))
        elif isinstance(how, Reshape):
            value = note_reshape(value, base._shape)
        else:
            value = updated(base, how, value)
        return replace(base, value)
    if isinstance(value, View):
        value = copied(value)
    self._shape, self._segment, self._value = value._shape, value._segment, value._value
    if value._segment is not None:
        self._number = value._number
        value._segment.arrays.append(self)
    return None


def updated(base: Array, key: tuple[Any, ...], value: Array) -> Array:
    """The base with a part replaced; a leaf that nobody else has is written in place."""
    if base._dtype not in SUPPORTED or value._dtype not in SUPPORTED:
        whole = known(base, "NumPy").copy()
        whole[key] = plain(value)
        return adopted(whole)
    part = part_of(base._shape, key)
    row = rows.update_row(part.pattern, base._dtype)
    result = note(row, (base, value), base._shape, part.numbers)
    segment = cast("Segment", result._segment)
    number = segment.operations[-1][1][0]
    if number < 0:
        segment.updated.add(~number)
    return result


def written(out: Any, result: Any) -> Any:
    """Write a result to `out`, which is returned."""
    if not isinstance(result, Array):
        result = array(result)
    if not np.can_cast(result._dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"cannot cast ufunc output from {result._dtype!r} to {out.dtype!r} with casting rule 'same_kind'"
        )
    if result._shape != tuple(out.shape):
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the broadcast shape {result._shape}"
        )
    if isinstance(out, Array):
        replace(out, fitted(result, out._shape, out._dtype))
    else:
        out[...] = known(result, "out")
    return out
