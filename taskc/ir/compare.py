"""Comparison of two programs up to renaming.

Variables, tensors, rings, tables, snippets and combine functions must correspond one to one. Everything else
must be equal: floats by their bits, any NaN to any NaN. Locations, notes and the names of what corresponds
don't count; nor does a Sequence around the one statement of a body, for the text has none there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable
from dataclasses import fields
from typing import Any

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.printer import expression_text, statement_text
from taskc.ir.rewrite import EXPRESSION_TYPES, PART_TYPES, STATEMENT_TYPES, operands_first
from taskc.ir.text_rules import single_statement
from taskc.ir.types import i64

_NAMES = (ir.Variable, ir.Tensor, ir.Ring, ir.Table, ir.Snippet, ir.Combine)

# The fields that define a node, and those that have to agree where two names correspond.
_FIELDS: dict[type, tuple[str, ...]] = {
    node: tuple(
        field.name for field in fields(node) if field.init and field.name not in ("loc", "notes")
    )
    for node in (STATEMENT_TYPES | EXPRESSION_TYPES | PART_TYPES | {ir.Kernel}) - {ir.Variable}
}
_FIELDS |= {
    kind: tuple(field.name for field in fields(kind) if field.name not in ("loc", "name"))
    for kind in _NAMES
}
_BODIES = frozenset({"body", "then", "otherwise"})


def same_program(a: ir.Kernel, b: ir.Kernel) -> bool:
    return program_difference(a, b) is None


@deeply
def program_difference(a: ir.Kernel, b: ir.Kernel) -> str | None:
    """The first difference in program order, or None."""
    forward: dict[Any, Any] = {}
    backward: dict[Any, Any] = {}
    seen: set[tuple[int, int]] = set()
    # Pairs yet to compare, with a description of each and the pair of statements around it.
    stack: list[tuple[Any, Any, str, tuple[Any, Any] | None]] = [(a, b, "kernel", None)]
    while stack:
        x, y, what, around = stack.pop()
        kind = type(x)
        if kind is not type(y):
            if not _equal_extents(x, y):
                return _described(x, y, what, around)
            continue
        if kind in _NAMES:
            if x in forward or y in backward:
                if forward.get(x) is not y:
                    return _described(x, y, what, around)
                continue
            forward[x] = y
            backward[y] = x
        elif kind is tuple:
            if len(x) != len(y):
                return _described(x, y, what, around)
            stack.extend(
                (i, j, what, around) for i, j in zip(reversed(x), reversed(y), strict=True)
            )
            continue
        elif kind not in _FIELDS:
            if not _equal(x, y):
                return _described(x, y, what, around)
            continue
        elif (id(x), id(y)) in seen:  # expressions may be shared, so their trees may be exponential
            continue
        seen.add((id(x), id(y)))
        if kind in STATEMENT_TYPES:
            around = (x, y)
        if kind is ir.Constant:
            if x.dtype is not y.dtype or not _equal_constants(x, y):
                return _described(x, y, what, around)
            continue
        for name in reversed(_FIELDS[kind]):
            left, right = getattr(x, name), getattr(y, name)
            if name in _BODIES:
                left, right = left and single_statement(left), right and single_statement(right)
            stack.append((left, right, _called(kind, name), around))
    return None


def structure(*parts: Any) -> Hashable:
    """A key of expressions, names and tuples of them: equal keys, equal parts, as `same_program` compares.

    x[i] + x[i] * 2.0 and y[k] + y[k] * 2.0 have one key, whether x[i] is one object or two.
    """
    numbers = _Numbers()
    roots = numbers.of(parts)
    return roots, tuple(numbers.numbers)


class _Numbers:
    """Numbers of distinct parts, in the order of the first ones, operands first; a name's is of its place."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, tuple[int]] = {}
        self.known: dict[int, tuple[int]] = {}  # by identity

    def of(self, item: Any) -> Hashable:
        kind = type(item)
        if kind is tuple:
            return tuple([self.of(part) for part in item])
        if kind in EXPRESSION_TYPES:
            for part in operands_first(item):
                self.number(part)
        elif kind not in _NAMES:
            return (item.dtype.str, item.shape, item.tobytes()) if kind is np.ndarray else item
        return self.number(item)

    def number(self, part: Any) -> Hashable:
        """The number of a name, or of an expression whose operands have theirs; a tuple, since extents are numbers."""
        known = self.known.get(id(part))
        if known is None:
            key = self.key(part)
            known = self.known[id(part)] = self.numbers.setdefault(key, (len(self.numbers),))
        return known

    def key(self, part: Any) -> Hashable:
        kind = type(part)
        if kind is ir.Constant:
            is_float = part.dtype.is_float
            value = _bits(float(part.value)) if is_float else (type(part.value), part.value)
            return kind, part.dtype, value
        fields = tuple([self.of(getattr(part, name)) for name in _FIELDS[kind]])
        return kind, fields, len(self.numbers) if kind in _NAMES else None


def _called(kind: type, name: str) -> str:
    return f"{kind.__name__}.{name}"


def _equal_extents(x: object, y: object) -> bool:
    """Whether two extents are equal, each an int or a constant."""
    return _extent(x) is not None and _extent(x) == _extent(y)


def _extent(x: object) -> int | None:
    if isinstance(x, ir.Constant) and type(x.value) is int and x.dtype is i64:
        return x.value
    return x if type(x) is int else None


def _equal_constants(x: ir.Constant, y: ir.Constant) -> bool:
    if x.dtype.is_float:
        return _bits(float(x.value)) == _bits(float(y.value))
    return type(x.value) is type(y.value) and x.value == y.value


def _bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("d", value)


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, np.ndarray):
        return np.array_equal(x, y)
    return x is y or bool(x == y)


def _described(x: Any, y: Any, what: str, around: tuple[Any, Any] | None) -> str:
    text = f"{what}: {_shown(x)} against {_shown(y)}"
    if around is None:
        return text
    first, second = (statement_text(statement).partition("\n")[0] for statement in around)
    place = f"in `{first}`" if first == second else f"in `{first}` against `{second}`"
    return f"{text}, {place}"


def _shown(x: Any) -> str:
    if isinstance(x, (ir.Tensor, ir.Ring, ir.Table, ir.Snippet, ir.Combine)):
        return x.name
    if type(x) in STATEMENT_TYPES:
        return f"`{statement_text(x).partition(chr(10))[0]}`"
    if type(x) in EXPRESSION_TYPES:
        return f"`{expression_text(x)}`"
    if isinstance(x, tuple):
        return f"{len(x)} of them" if x and type(x[0]) in _FIELDS else str(x)
    return repr(x) if isinstance(x, str) else str(x)
