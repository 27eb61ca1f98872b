"""The operators of arrays: x + y, y + x, x += y and -x, with the shortest way from an operator to a noted operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.numpy.array import (
    Array,
    View,
    appended,
    elements,
    frame_at,
    number_in,
    opened,
    site_of,
    written,
)
from taskc.numpy.rows import Row, ufunc_row
from taskc.numpy.segment import UNROLLED, here
from taskc.numpy.shapes import broadcast


def _binary(ufunc: np.ufunc) -> tuple[Callable[..., Any], ...]:
    """The methods of an operator: x + y, y + x and x += y. Rows of arrays and of numbers are looked up at once."""
    of_arrays: dict[Any, Row] = {}
    of_numbers: dict[Any, tuple[Row, np.dtype[Any]]] = {}

    def operate(x: Array, y: Any) -> Any:
        kind = type(y)
        if kind is View or kind is Array:
            key = x._dtype, y._dtype
            row = of_arrays.get(key)
            if row is None:
                row = ufunc_row(ufunc, key)
                if row is None:
                    return elements(ufunc, x, y)
                of_arrays[key] = row
            shape = x._shape
            if shape != y._shape:
                shape = broadcast(shape, y._shape)
            elif shape == () and x._segment is None and y._segment is None:
                return elements(ufunc, x, y)
            frame = frame_at(1)
            site = frame.f_code, frame.f_lasti
            segment = here.segment
            if len(segment.operations) >= UNROLLED:
                segment = opened(site)
            left = (
                number_in(segment, x) if x._segment is not segment or type(x) is View else x._number
            )
            right = (
                number_in(segment, y) if y._segment is not segment or kind is View else y._number
            )
            return appended(segment, row, (left, right), shape, (), site)
        if kind is float or kind is int:
            weak = of_numbers.get((x._dtype, kind))
            if weak is None:
                weak = _weak_row(ufunc, x._dtype, kind)
                if weak is None:
                    return elements(ufunc, x, y)
                of_numbers[x._dtype, kind] = weak
            if x._shape or x._segment is not None:
                row, to = weak
                number = np.asarray(y, to)
                frame = frame_at(1)
                site = frame.f_code, frame.f_lasti
                segment = here.segment
                if len(segment.operations) >= UNROLLED:
                    segment = opened(site)
                left = (
                    number_in(segment, x)
                    if x._segment is not segment or type(x) is View
                    else x._number
                )
                return appended(segment, row, (left, segment.leaf(number)), x._shape, (), site)
        elif _is_foreign(y):
            return NotImplemented
        return elements(ufunc, x, y)

    def turned(x: Array, y: Any) -> Any:
        return NotImplemented if _is_foreign(y) else elements(ufunc, y, x)

    def in_place(x: Array, y: Any) -> Any:
        result = operate(x, y)
        if result is NotImplemented or (not x._shape and type(x) is Array):
            return result
        return written(x, result)

    return operate, turned, in_place


def _weak_row(
    ufunc: np.ufunc, dtype: np.dtype[Any], kind: type
) -> tuple[Row, np.dtype[Any]] | None:
    """The row for an array and a number of Python's, and the type that the number gets."""
    row = None if ufunc is np.power else ufunc_row(ufunc, (dtype, kind))
    return None if row is None else (row, ufunc.resolve_dtypes((dtype, kind, None))[1])


def unary(ufunc: np.ufunc) -> Callable[[Array], Any]:
    """A function of the elements of one array."""
    known_rows: dict[Any, Row] = {}

    def operate(x: Any) -> Any:
        kind = type(x)
        if (kind is Array or kind is View) and (x._shape or x._segment is not None):
            row = known_rows.get(x._dtype)
            if row is not None:
                site = site_of(frame_at(1))
                segment = opened(site)
                number = (
                    number_in(segment, x)
                    if x._segment is not segment or kind is View
                    else x._number
                )
                return appended(segment, row, (number,), x._shape, (), site)
            row = ufunc_row(ufunc, (x._dtype,))
            if row is not None:
                known_rows[x._dtype] = row
        return elements(ufunc, x)

    return operate


def _is_foreign(y: object) -> bool:
    return not isinstance(y, Array | int | float | complex | np.ndarray | np.generic | list | tuple)


def _install() -> None:
    names = {
        "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
        "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "left_shift", "rshift": "right_shift",
    }  # fmt: skip
    for name, ufunc in names.items():
        operate, turned, in_place = _binary(getattr(np, ufunc))
        setattr(Array, f"__{name}__", operate)
        setattr(Array, f"__r{name}__", turned)
        setattr(Array, f"__i{name}__", in_place)
    comparisons = {
        "eq": "equal",
        "ne": "not_equal",
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
    }
    for name, ufunc in comparisons.items():
        setattr(Array, f"__{name}__", _binary(getattr(np, ufunc))[0])
    for name, ufunc in {
        "neg": "negative",
        "pos": "positive",
        "abs": "absolute",
        "invert": "invert",
    }.items():
        setattr(Array, f"__{name}__", unary(getattr(np, ufunc)))


_install()
Array.__hash__ = None  # type: ignore[assignment]
