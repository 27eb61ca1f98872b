"""Indices that are arrays: integers gather, and bools choose.

Integer arrays along neighbouring axes are noted. A choice by bools has as many elements as the bools decide, so that
their value is needed, except where one number is written. Writing at places given by arrays is NumPy's work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.numpy import rows
from taskc.numpy.array import Array, adopted, advanced, array, known, note, plain, replace
from taskc.numpy.rows import SUPPORTED
from taskc.numpy.shapes import broadcast


def gathered(x: Array, key: tuple[Any, ...]) -> Array:
    """x[key], where a part of the key is an array or a list."""
    key = tuple([array(entry) if isinstance(entry, list | np.ndarray) else entry for entry in key])
    places = [n for n, entry in enumerate(key) if isinstance(entry, Array)]
    chosen = [key[n] for n in places]
    is_plain = all(entry == slice(None) for n, entry in enumerate(key) if n not in places)
    if (
        not is_plain or x.dtype not in SUPPORTED or not places or places != [*range(places[0], places[-1] + 1)]
        or any(entry.dtype.kind not in "iu" for entry in chosen) or len(key) > x.ndim
    ):  # fmt: skip
        return adopted(np.array(known(x, "index")[tuple(map(plain, key))], order="C"))
    for entry, extent in zip(chosen, x.shape[places[0] :], strict=False):
        if entry._segment is None and type(entry) is Array:
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


def scattered(x: Array, key: tuple[Any, ...], value: Any) -> None:
    """x[key] = value, where a part of the key is an array or a list."""
    mask = key[0]
    if (
        len(key) == 1
        and isinstance(mask, Array | np.ndarray)
        and mask.dtype == bool
        and np.ndim(value) == 0
    ):
        mask = mask if isinstance(mask, Array) else array(mask)
        number = value if isinstance(value, Array) else adopted(np.array(value, x.dtype))
        if (
            x.dtype in SUPPORTED
            and number.dtype in SUPPORTED
            and mask.shape == x.shape[: mask.ndim]
        ):
            mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
            row = rows.choose_row(x.dtype)
            return replace(x, note(row, (mask, number, x), x.shape))
    whole = known(x, "setitem").copy()
    whole[tuple(map(plain, key))] = plain(value)
    return replace(x, adopted(whole))


advanced.update(read=gathered, write=scattered)
