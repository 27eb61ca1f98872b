"""Construction of index expressions, with constants folded and neutral operands dropped."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import COMPARISONS
from taskc.ir.nodes import Constant, Expression
from taskc.ir.types import boolean, i64

Index = Expression | int

_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "==": operator.eq,
}

ZERO = Constant(0, i64)
TRUE = Constant(True, boolean)


def index(value: Index) -> Expression:
    return Constant(value, i64) if isinstance(value, int) else value


def _is(value: Index, number: int) -> bool:
    return (value.value if isinstance(value, Constant) else value) == number


def _made(symbol: str, left: Index, right: Index) -> Expression:
    left, right = index(left), index(right)
    if isinstance(left, Constant) and isinstance(right, Constant):
        dtype = boolean if symbol in COMPARISONS else i64
        return Constant(_PYTHON[symbol](left.value, right.value), dtype)
    return ir.Binary(symbol, left, right)


def add(left: Index, right: Index) -> Expression:
    if _is(left, 0):
        return index(right)
    return index(left) if _is(right, 0) else _made("+", left, right)


def subtract(left: Index, right: Index) -> Expression:
    return index(left) if _is(right, 0) else _made("-", left, right)


def multiply(left: Index, right: Index) -> Expression:
    if isinstance(index(left), Constant):
        left, right = right, left
    if _is(right, 0):
        return ZERO
    return index(left) if _is(right, 1) else _made("*", left, right)


def floor_divide(left: Index, right: Index) -> Expression:
    return index(left) if _is(right, 1) else _made("//", left, right)


def modulo(left: Index, right: Index) -> Expression:
    return ZERO if _is(right, 1) else _made("%", left, right)


def ceiling_divide(left: Index, right: int) -> Expression:
    return floor_divide(add(left, right - 1), right)


def total(terms: Iterable[Index]) -> Expression:
    """A balanced sum, so that depth stays logarithmic."""
    items = [index(term) for term in terms]
    if not items:
        return ZERO
    while len(items) > 1:
        pairs = [add(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = pairs + items[len(pairs) * 2 :]
    return items[0]


def product(factors: Iterable[Index]) -> Expression:
    return reduce(multiply, factors, index(1))


def less(left: Index, right: Index) -> Expression:
    return _made("<", left, right)


def equal(left: Index, right: Index) -> Expression:
    return _made("==", left, right)


def conjunction(conditions: Iterable[Expression | None]) -> Expression | None:
    """The conjunction of conditions, in order; None if there are none."""
    result: Expression | None = None
    for condition in conditions:
        if condition is None or condition == TRUE:
            continue
        result = condition if result is None else ir.Binary("and", result, condition)
    return result


def guarded(condition: Expression | None, body: ir.Statement) -> ir.Statement:
    return body if condition is None else ir.If(condition, body)


def digits_of(number: Index, sizes: Sequence[int]) -> list[Expression]:
    """The mixed-radix digits of a number, slowest first; the slowest digit is unbounded."""
    digits: list[Expression] = []
    weight = 1
    for position in reversed(range(len(sizes))):
        digit = floor_divide(number, weight)
        digits.append(modulo(digit, sizes[position]) if position else digit)
        weight *= sizes[position]
    return digits[::-1]
