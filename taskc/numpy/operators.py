"""The operators of arrays: x + y, y + x, x += y and -x, with the shortest way from an operator to a noted operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.numpy.array import NUMBERS, SMALL, Array, small
from taskc.numpy.noting import (
    appended,
    came_around,
    computed,
    elements,
    frame_at,
    is_small_together,
    number_in,
    row_of,
    writable,
    written,
)
from taskc.numpy.rows import SUPPORTED
from taskc.numpy.segment import UNROLLED, here, recorders

_UNKNOWN = None, ()


def _operator(ufunc: np.ufunc, is_turned: bool = False) -> Callable[[Array, Any], Any]:
    """The method x + y, or y + x. Rows of large arrays are looked up at once."""
    known_rows: dict[Any, Any] = {}  # by types: a row, and the types in which it takes numbers

    def operate(x: Array, y: Any) -> Any:
        one = x._value
        if one is not None and one.size <= SMALL and not recorders:
            if type(y) in NUMBERS:
                return computed(ufunc, (y, one) if is_turned else (one, y))
            other = small(y)
            if type(other) is np.ndarray and (
                one.shape == other.shape or is_small_together(one.shape, other.shape)
            ):
                return computed(ufunc, (other, one) if is_turned else (one, other))
        is_array = isinstance(y, Array)
        types = x._dtype, y._dtype if is_array else type(y)
        row, wanted = known_rows.get(types, _UNKNOWN)
        if row is None or (is_array and x._shape != y._shape):
            if _is_foreign(y):
                return NotImplemented
            if ufunc is not np.power:  # small exponents are rows of their own
                known_rows[types] = row_of(ufunc, types[::-1] if is_turned else types)
            return elements(ufunc, y, x) if is_turned else elements(ufunc, x, y)
        frame = frame_at(1)
        site = frame.f_code, frame.f_lasti
        segment = here.segment
        if len(segment.operations) >= UNROLLED:
            if came_around(site):
                return elements(ufunc, y, x) if is_turned else elements(ufunc, x, y)
            segment = here.segment
        left = (
            x._number if x._segment is segment and type(x) is Array else number_in(segment, x, site)
        )
        if not is_array:
            right = segment.leaf(np.asarray(y, wanted[0 if is_turned else 1]))
            operands = (right, left) if is_turned else (left, right)
        elif y._segment is segment and type(y) is Array:
            operands = left, y._number
        else:
            operands = left, number_in(segment, y, site)
        return appended(segment, row, operands, x._shape, (), site)

    return operate


def _in_place(ufunc: np.ufunc, operate: Callable[[Array, Any], Any]) -> Callable[[Array, Any], Any]:
    """The method x += y."""

    def update(x: Array, y: Any) -> Any:
        if not x._shape and type(x) is Array:
            return operate(x, y)
        memory = None if recorders or _is_foreign(y) else writable(x)
        if memory is not None and (memory.size <= SMALL or x._dtype not in SUPPORTED):
            other = small(y)
            if other is not None:
                ufunc(memory, other, memory)
                return x
        del memory  # it would be copied
        result = operate(x, y)
        return result if result is NotImplemented else written(x, result)

    return update


def unary(ufunc: np.ufunc) -> Callable[[Array], Any]:
    """A function of the elements of one array."""

    def apply(x: Any) -> Any:
        value = small(x)
        if value is not None and not recorders:
            return computed(ufunc, (value,))
        return elements(ufunc, x)

    return apply


def _is_foreign(y: object) -> bool:
    return not isinstance(y, Array | int | float | complex | np.ndarray | np.generic | list | tuple)


def _install() -> None:
    names = {
        "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
        "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "left_shift", "rshift": "right_shift",
    }  # fmt: skip
    for name, ufunc in names.items():
        of = getattr(np, ufunc)
        operate = _operator(of)
        setattr(Array, f"__{name}__", operate)
        setattr(Array, f"__r{name}__", _operator(of, is_turned=True))
        setattr(Array, f"__i{name}__", _in_place(of, operate))
    comparisons = {
        "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    }  # fmt: skip
    for name, ufunc in comparisons.items():
        setattr(Array, f"__{name}__", _operator(getattr(np, ufunc)))
    one_operand = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
    for name, ufunc in one_operand.items():
        setattr(Array, f"__{name}__", unary(getattr(np, ufunc)))


_install()
Array.__hash__ = None  # type: ignore[assignment]
