"""Shapes of noted operations, as NumPy determines them: indices, broadcasts, axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index as as_index
from typing import Any, TypeAlias

import numpy as np

from taskc.dataclass import dataclass

Shape: TypeAlias = tuple[int, ...]


@lru_cache(1 << 12)
def broadcast(*shapes: Shape) -> Shape:
    return np.broadcast_shapes(*shapes)


@dataclass(frozen=True, slots=True)
class Part:
    """A basic index: its pattern and numbers, for `part_row`, and the shape of the part."""

    pattern: tuple[str | int, ...]
    numbers: tuple[int, ...]
    shape: Shape
    is_element: bool


_PLAIN = frozenset({int, type(None), type(...)})


def basic(key: Any) -> tuple[Any, ...] | None:
    """An index of integers, slices, `...` and None as a tuple of Python's own; None for one with arrays."""
    entries = key if type(key) is tuple else (key,)
    for entry in entries:
        kind = type(entry)
        if kind is slice:
            start, stop, step = entry.start, entry.stop, entry.step
            if not (
                (start is None or type(start) is int)
                and (stop is None or type(stop) is int)
                and (step is None or type(step) is int)
            ):
                break
        elif kind not in _PLAIN:
            break
    else:
        return entries
    if any(map(_is_advanced, entries)):
        return None
    return tuple(map(_plain, entries))


def _is_advanced(entry: Any) -> bool:
    return isinstance(entry, list | bool | np.bool_) or (
        getattr(entry, "ndim", 0) > 0 or getattr(entry, "dtype", None) == np.dtype(bool)
    )


def _plain(entry: Any) -> Any:
    if type(entry) in _PLAIN:
        return entry
    if isinstance(entry, slice):
        bounds = (entry.start, entry.stop, entry.step)
        return slice(*[None if bound is None else as_index(bound) for bound in bounds])
    if hasattr(entry, "__index__"):
        return as_index(entry)
    raise IndexError(f"an index is an integer, a slice, `...`, None or an array, not {entry!r}")


_parts: dict[Any, Part] = {}


def part_of(shape: Shape, key: tuple[Any, ...]) -> Part:
    """The part of an array that a basic index selects."""
    fields = tuple(
        [(x.start, x.stop, x.step) if type(x) is slice else x for x in key]
    )  # slices have no hash
    known = _parts.get((shape, fields))
    if known is None:
        if len(_parts) > 1 << 14:
            _parts.clear()
        known = _parts[shape, fields] = _part_of(shape, key)
    return known


def _part_of(shape: Shape, key: tuple[Any, ...]) -> Part:
    is_element = len(key) == len(shape) and not any(
        entry is None or entry is Ellipsis or isinstance(entry, slice) for entry in key
    )
    count = sum(entry is not None and entry is not Ellipsis for entry in key)
    if count > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {count} were indexed"
        )
    if Ellipsis not in key:
        key = (*key, Ellipsis)
    pattern: list[str | int] = []
    numbers: list[int] = []
    part: list[int] = []
    axis = 0
    for entry in key:
        if entry is None:
            pattern.append("new")
            numbers += (0, 1)
            part.append(1)
        elif entry is Ellipsis:
            for extent in shape[axis : axis + len(shape) - count]:
                pattern.append(1)
                numbers += (0, extent)
                part.append(extent)
            axis += len(shape) - count
        elif isinstance(entry, slice):
            start, stop, step = entry.indices(shape[axis])
            extent = len(range(start, stop, step))
            pattern.append(step)
            numbers += (start, extent)
            part.append(extent)
            axis += 1
        else:
            place, extent = as_index(entry), shape[axis]
            if not -extent <= place < extent:
                raise IndexError(
                    f"index {place} is out of bounds for axis {axis} with size {extent}"
                )
            pattern.append("index")
            numbers += (place % extent, 1)
            axis += 1
    return Part(tuple(pattern), tuple(numbers), tuple(part), is_element)


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """The axes that an argument names: None for all, one, or several."""
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if not rank and axes in ((0,), (-1,)):
        return ()  # as NumPy does
    return np.lib.array_utils.normalize_axis_tuple(tuple(axes), rank)


def folded(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple([1 if axis in axes else n for axis, n in enumerate(shape)])
    return tuple([n for axis, n in enumerate(shape) if axis not in axes])


def reshaped(shape: Shape, wanted: Any) -> Shape:
    """The shape that `reshape` gives, with -1 resolved."""
    sizes = [as_index(n) for n in (wanted if isinstance(wanted, tuple | list) else (wanted,))]
    total = int(np.prod(shape, dtype=np.int64))
    known = 1
    for n in sizes:
        known *= n if n >= 0 else 1
    if sizes.count(-1) == 1 and known and total % known == 0:
        sizes = [total // known if n == -1 else n for n in sizes]
        known = total
    if known != total or min(sizes, default=0) < 0:
        raise ValueError(f"cannot reshape array of size {total} into shape {tuple(sizes)}")
    return tuple(sizes)
