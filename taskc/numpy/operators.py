"""The operators of arrays: x + y, y + x, x += y and -x, with the shortest way from an operator to a noted operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.numpy.array import SMALL, Array, small
from taskc.numpy.noting import (
    appended,
    computed,
    elements,
    frame_at,
    number_in,
    opened,
    writable,
    written,
)
from taskc.numpy.rows import SUPPORTED, Row, ufunc_row
from taskc.numpy.segment import recorders
from taskc.numpy.shapes import broadcast


def _binary(ufunc: np.ufunc) -> tuple[Callable[..., Any], ...]:
    """The methods of an operator: x + y, y + x and x += y. Rows of large arrays are looked up at once."""
    known_rows: dict[Any, Row | None] = {}

    def operate(x: Array, y: Any) -> Any:
        if not recorders:
            one, other = small(x), small(y)
            if one is not None and other is not None:
                if type(other) is not np.ndarray or one.shape == other.shape:
                    return computed(ufunc, (one, other))
                return elements(ufunc, x, y)
        if not isinstance(y, Array):
            return NotImplemented if _is_foreign(y) else elements(ufunc, x, y)
        key = x._dtype, y._dtype
        row = known_rows.get(key)
        if row is None:
            row = known_rows[key] = ufunc_row(ufunc, key)
            if row is None:
                return elements(ufunc, x, y)
        shape = x._shape
        if shape != y._shape:
            shape = broadcast(shape, y._shape)
        frame = frame_at(1)
        site = frame.f_code, frame.f_lasti
        segment = opened(site)
        operands = number_in(segment, x, site), number_in(segment, y, site)
        return appended(segment, row, operands, shape, (), site)

    def turned(x: Array, y: Any) -> Any:
        return NotImplemented if _is_foreign(y) else elements(ufunc, y, x)

    def in_place(x: Array, y: Any) -> Any:
        if not x._shape and type(x) is Array:
            return operate(x, y)
        memory = None if recorders or _is_foreign(y) else writable(x)
        if memory is not None and (memory.size <= SMALL or x._dtype not in SUPPORTED):
            other = small(y)
            if other is not None:
                ufunc(memory, other, memory)
                return x
        del memory
        result = operate(x, y)
        return result if result is NotImplemented else written(x, result)

    return operate, turned, in_place


def unary(ufunc: np.ufunc) -> Callable[[Array], Any]:
    """A function of the elements of one array."""
    return lambda x: elements(ufunc, x)


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
        "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    }  # fmt: skip
    for name, ufunc in comparisons.items():
        setattr(Array, f"__{name}__", _binary(getattr(np, ufunc))[0])
    one_operand = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
    for name, ufunc in one_operand.items():
        setattr(Array, f"__{name}__", unary(getattr(np, ufunc)))


_install()
Array.__hash__ = None  # type: ignore[assignment]
