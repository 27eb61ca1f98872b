"""Sizes that are known only at a call, as the Python of a program that is being traced sees them.

A symbolic dimension can be computed with: `k // 4` and `tc.cdiv(m, 32)` are sizes, too, of temporaries
or as scalar arguments. Python can't branch on what only a call tells, so a comparison is an error
unless it comes out alike for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from taskc.errors import CompileError
from taskc.ir import build
from taskc.ir.affine import Affine, Scope
from taskc.ir.interval import Interval
from taskc.ir.linear import ZERO
from taskc.ir.nodes import Expression, Variable
from taskc.ir.printer import expression_text
from taskc.lang.source import call_site

Number: TypeAlias = "int | Symbolic"

_HINT = "what a program does is decided while it is traced; a choice by size belongs in a kernel"


class Symbolic:
    """A dimension, or what was computed from some. Outside of a trace a dimension is only a name."""

    __slots__ = ()

    def __add__(self, other: object) -> Any:
        return _compute("+", self, other)

    def __radd__(self, other: object) -> Any:
        return _compute("+", other, self)

    def __sub__(self, other: object) -> Any:
        return _compute("-", self, other)

    def __rsub__(self, other: object) -> Any:
        return _compute("-", other, self)

    def __mul__(self, other: object) -> Any:
        return _compute("*", self, other)

    def __rmul__(self, other: object) -> Any:
        return _compute("*", other, self)

    def __floordiv__(self, other: object) -> Any:
        return _compute("//", self, other)

    def __rfloordiv__(self, other: object) -> Any:
        return _compute("//", other, self)

    def __mod__(self, other: object) -> Any:
        return _compute("%", self, other)

    def __rmod__(self, other: object) -> Any:
        return _compute("%", other, self)

    def __neg__(self) -> Any:
        return _compute("-", 0, self)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return _compare("==", self, other)

    def __ne__(self, other: object) -> Any:
        return _compare("!=", self, other)

    def __lt__(self, other: object) -> Any:
        return _compare("<", self, other)

    def __le__(self, other: object) -> Any:
        return _compare("<=", self, other)

    def __gt__(self, other: object) -> Any:
        return _compare(">", self, other)

    def __ge__(self, other: object) -> Any:
        return _compare(">=", self, other)

    def __bool__(self) -> bool:
        if tracing.get() is None and not isinstance(self, Size):
            return True
        return bool(_compare("!=", self, 0))

    def __int__(self) -> int:
        raise _unknown(f"the value of '{self}'")

    def __index__(self) -> int:
        raise _unknown(f"the value of '{self}'")

    def __float__(self) -> float:
        raise _unknown(f"the value of '{self}'")


class Size(Symbolic):
    """Arithmetic on the dimensions of one program."""

    __slots__ = ("_expression", "_owner")

    def __init__(self, expression: Expression, owner: Sizes) -> None:
        self._expression = expression
        self._owner = owner

    def __repr__(self) -> str:
        return expression_text(self._expression)


class Sizes:
    """What a program that is being traced knows of its sizes."""

    def __init__(self, name: str, dimensions: dict[Any, Variable]) -> None:
        self.name = name
        self._variables: dict[Symbolic, Variable] = dimensions
        self._dimensions: dict[Variable, Symbolic] = {
            variable: dimension for dimension, variable in dimensions.items()
        }
        self._scope = Scope()
        for variable in dimensions.values():
            self._scope.bind(variable, ZERO, None)

    def expression(self, value: Number) -> Expression:
        """A size as an expression of the program's dimensions."""
        if isinstance(value, Size):
            if value._owner is not self:
                raise CompileError(
                    f"the size '{value}' belongs to program '{value._owner.name}'", call_site()
                )
            return value._expression
        if isinstance(value, Symbolic):
            if value not in self._variables:
                raise CompileError(
                    f"the dimension '{value}' is not an extent of any parameter of '{self.name}'",
                    call_site(),
                    "its size is learned from the arguments of a call",
                )
            return self._variables[value]
        return build.index(int(value))

    def number(self, expression: Expression) -> Number:
        """An expression as the program's Python sees it: an int or a dimension where it is one."""
        form = self._scope.form(expression)
        if form.is_constant:
            return form.constant
        for variable, dimension in self._dimensions.items():
            if form == self._scope.form(variable):
                return dimension
        return Size(expression, self)

    def extent(self, expression: Expression) -> int | Expression:
        """An expression as the extent of a tensor."""
        form = self._scope.form(expression)
        return form.constant if form.is_constant else expression

    def are_equal(self, left: int | Expression, right: int | Expression) -> bool:
        """For all sizes."""
        return self.difference(left, right) == ZERO

    def difference(self, left: int | Expression, right: int | Expression) -> Affine:
        return self._scope.form(build.index(left)) - self._scope.form(build.index(right))

    def interval(self, form: Affine) -> Interval:
        return self._scope.interval_of(form)

    def divides(self, divisor: int, extent: int | Expression) -> bool:
        """For all sizes."""
        return self._scope.divides(divisor, self._scope.form(build.index(extent)))


# The program whose body is running, in this thread.
tracing: ContextVar[Sizes | None] = ContextVar("tracing", default=None)

_BUILD: dict[str, Callable[[Expression, Expression], Expression]] = {
    "+": build.add,
    "-": build.subtract,
    "*": build.multiply,
    "//": build.floor_divide,
    "%": build.modulo,
}

# When a comparison surely holds, and when it surely doesn't: of the difference of its sides.
_TESTS: dict[str, tuple[Callable[[Interval], bool], Callable[[Interval], bool]]] = {
    "==": (lambda d: d == (0, 0), lambda d: _above(d, 1) or _below(d, -1)),
    "!=": (lambda d: _above(d, 1) or _below(d, -1), lambda d: d == (0, 0)),
    "<": (lambda d: _below(d, -1), lambda d: _above(d, 0)),
    "<=": (lambda d: _below(d, 0), lambda d: _above(d, 1)),
    ">": (lambda d: _above(d, 1), lambda d: _below(d, 0)),
    ">=": (lambda d: _above(d, 0), lambda d: _below(d, -1)),
}


def _above(interval: Interval, least: int) -> bool:
    return interval.low is not None and interval.low >= least


def _below(interval: Interval, most: int) -> bool:
    return interval.high is not None and interval.high <= most


def _is_size(value: object) -> bool:
    return isinstance(value, (int, np.integer, Symbolic)) and not isinstance(value, bool)


def _owner(left: object, right: object) -> Sizes | None:
    owner = tracing.get()
    if owner is None and (isinstance(left, Size) or isinstance(right, Size)):
        size = left if isinstance(left, Size) else right
        raise CompileError(f"the size '{size}' is used outside its program", call_site())
    return owner


def _compute(operator: str, left: Any, right: Any) -> Any:
    owner = _owner(left, right)
    if owner is None or not (_is_size(left) and _is_size(right)):
        return NotImplemented
    if operator in ("//", "%") and (isinstance(right, Symbolic) or right < 1):
        raise CompileError(
            f"a size is divided by a constant of at least 1, and this is {right}", call_site()
        )
    made = _BUILD[operator](owner.expression(left), owner.expression(right))
    return owner.number(made)


def _compare(operator: str, left: Any, right: Any) -> Any:
    owner = _owner(left, right)
    if owner is None or not (_is_size(left) and _is_size(right)):
        return NotImplemented
    form = owner.difference(owner.expression(left), owner.expression(right))
    difference = owner.interval(form)
    holds, fails = _TESTS[operator]
    if holds(difference):
        return True
    if fails(difference):
        return False
    raise _unknown(f"whether {left} {operator} {right}")


def _unknown(what: str) -> CompileError:
    return CompileError(f"{what} is known only when the program is called", call_site(), _HINT)
