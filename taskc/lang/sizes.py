"""Sizes that are known only at a call (dynamic shapes): symbolic dimensions, and what is computed from them.

    x: f32[m, n], y: tc.out[f32[m * n]]     extents of parameters
    tc.empty(f32[tc.cdiv(m, 32)])           in a program: extents of temporaries, and scalars

Python can't branch on what only a call tells: while a program is traced, a comparison is an error unless
it comes out alike for all sizes, or the trace has assumptions. Elsewhere sizes are objects
like others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import reduce
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from taskc.errors import CompileError
from taskc.ir import build
from taskc.ir.affine import SymbolTable
from taskc.ir.linear import ZERO, Affine, Atom, Interval, factors_of
from taskc.ir.nodes import Binary, Cast, Constant, Expression, Variable
from taskc.ir.rewrite import substitute, walk
from taskc.ir.types import f64, i64
from taskc.lang.source import call_site

Number: TypeAlias = "int | Size"

_CONSTANT = "it is asked while a kernel is made: give a number here, or let the kernel decide, by an if in its body"
_HINT = "what a program does is decided while it is traced; a choice by size belongs in a kernel"


Method: TypeAlias = "Callable[[OfSizes, object], Any]"


def _operators(symbol: str) -> tuple[Method, Method]:
    """The methods of the left and of the right operand."""
    return (
        lambda self, other: _compute(symbol, self, other),
        lambda self, other: _compute(symbol, other, self),
    )


def _comparison(symbol: str) -> Method:
    return lambda self, other: _compare(symbol, self, other)


class OfSizes:
    """A number that was computed of dimensions, and is known only at a call.

    expression  over the variables of the dimensions
    dimensions  those in it, by their variables
    """

    __slots__ = ("dimensions", "expression")

    def __init__(self, expression: Expression, dimensions: Mapping[Variable, Dimension]) -> None:
        self.expression = expression
        self.dimensions = dimensions

    def over(self, variable_of: Callable[[Dimension], Variable]) -> Expression:
        """The size as a kernel or a program has it, which have variables of their own."""
        values = {own: variable_of(dimension) for own, dimension in self.dimensions.items()}
        return substitute(self.expression, values)

    def __repr__(self) -> str:
        from taskc.ir.printer import expression_text  # with all that prints kernels

        return expression_text(self.expression)

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __floordiv__, __rfloordiv__ = _operators("//")
    __mod__, __rmod__ = _operators("%")
    __truediv__, __rtruediv__ = _operators("/")
    __pow__, __rpow__ = _operators("**")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))

    def __neg__(self) -> Any:
        return _compute("-", 0, self)

    def __float__(self) -> float:
        raise _nonumber_of(self)


class Size(OfSizes):
    """A dimension, or an integer that was computed from some: `m * n`, `n // 2 + 1`."""

    __slots__ = ()

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return _compare("==", self, other)

    def __ne__(self, other: object) -> Any:
        return _compare("!=", self, other)

    def __bool__(self) -> bool:
        return tracing.get() is None or bool(_compare("!=", self, 0))

    def __int__(self) -> int:
        raise _nonumber_of(self)

    def __index__(self) -> int:
        raise _nonumber_of(self)


class FloatOfSizes(OfSizes):
    """A float of f64, `1 / n`: in a kernel it takes the type of what it meets, as Python's floats do."""

    __slots__ = ()

    def __repr__(self) -> str:
        return super().__repr__().replace(".to(f64)", "")


class Dimension(Size):
    """An extent that is known only at a call, and is then a multiple of `multiple`.

    `example` is the extent that example arguments have.
    """

    __slots__ = ("example", "variable")

    def __init__(self, variable: Variable, example: int) -> None:
        super().__init__(variable, {variable: self})
        self.variable = variable
        self.example = example

    @property
    def name(self) -> str:
        return self.variable.name

    @property
    def multiple(self) -> int:
        return self.variable.multiple

    def new_variable(self) -> Variable:
        """A variable for it in one kernel or program."""
        own = self.variable
        return Variable(own.name, i64, own.multiple, most=own.most)


def dim(
    name: str, *, multiple: int = 1, example: int | None = None, most: int | None = None
) -> Dimension:
    """A symbolic dimension: one compiled kernel serves all its sizes.

    most  the size for which a program's memory is planned at its first call, where sizes grow from call to call
    """
    if not name.isidentifier():
        raise ValueError(f"a dimension's name is an identifier, not {name!r}")
    if multiple < 1:
        raise ValueError(f"a dimension is a multiple of 1 or more, not of {multiple}")
    if example is None:
        example = multiple * max(1, 37 // multiple)
    if example < 0 or example % multiple:
        raise ValueError(f"the example {example} of {name!r} isn't a multiple of {multiple}")
    return Dimension(Variable(name, i64, multiple, most=most), example)


class Answers(Protocol):
    """The answers to questions that sizes answer differently: `Assumptions`."""

    def answer(self, operator: str, difference: Size) -> bool | None: ...
    def note(self, difference: Number) -> None: ...


class Scope(Protocol):
    """The facts about sizes that hold where a program is traced."""

    assumptions: Answers | None

    def expression(self, value: int | OfSizes, /) -> Expression: ...
    def linear_difference(self, left: Expression, right: Expression, /) -> Affine: ...
    def interval(self, form: Affine, /) -> Interval: ...
    def are_equal(self, left: Expression, right: Expression, /) -> bool: ...


# The program whose body is running, in this thread.
tracing: ContextVar[Scope | None] = ContextVar("tracing", default=None)

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


def is_size(value: object) -> TypeGuard[Number]:
    return isinstance(value, (int, np.integer, Size)) and not isinstance(value, bool)


def symbol_table(variables: Iterable[Variable]) -> SymbolTable:
    """A symbol table with the one fact that holds for all sizes: they are 0 or more."""
    scope = SymbolTable()
    for variable in variables:
        scope.bind(variable, ZERO, None)
    return scope


def number_of(expression: Expression, known: Mapping[Variable, Dimension]) -> Number:
    """A size: an int or a dimension where it is one."""
    used = dict.fromkeys([node for node in walk(expression) if isinstance(node, Variable)])
    scope = symbol_table(used)
    form = scope.form(expression)
    if form.is_constant:
        return form.constant
    for variable in used:
        if form == scope.form(variable):
            return known[variable]
    return Size(expression, {variable: known[variable] for variable in used})


def _is_float(value: object) -> bool:
    return isinstance(value, (float, np.floating, FloatOfSizes))


def float_of(operator: str, left: Expression | float, right: Expression | float) -> Expression:
    """The operation of Python on numbers of which one is a float, or a true division: in f64."""
    a, b = map(as_float, (left, right))
    return Binary("pow" if operator == "**" else operator, a, b)


def as_float(value: Expression | float) -> Expression:
    if isinstance(value, (int, float)):
        return Constant(float(value), f64)
    return value if value.dtype is f64 else Cast(value, f64)


def is_float_power(operator: str, exponent: object) -> bool:
    """Whether Python's power of whole numbers is a float."""
    return operator == "**" and not (isinstance(exponent, int) and exponent >= 0)


def _compute(operator: str, left: Any, right: Any) -> Any:
    if not all(is_size(side) or _is_float(side) for side in (left, right)):
        return NotImplemented
    if _is_float(left) or _is_float(right) or operator == "/" or is_float_power(operator, right):
        dimensions: dict[Variable, Dimension] = {}
        parts: list[Expression | float] = []
        for side in (left, right):
            if isinstance(side, OfSizes):
                dimensions.update(side.dimensions)
            is_of_sizes = isinstance(side, OfSizes)
            parts.append(
                side.expression
                if is_of_sizes
                else side.item()
                if isinstance(side, np.generic)
                else side
            )
        return FloatOfSizes(float_of(operator, *parts), dimensions)
    if operator == "**":
        return reduce(lambda a, b: a * b, [left] * right, 1)
    if operator in ("//", "%") and (isinstance(right, Size) or right < 1):
        raise CompileError(
            f"a size is divided by a constant of at least 1, and this is {right}", call_site()
        )
    dimensions_of: dict[Variable, Dimension] = {}
    sides = []
    for side in (left, right):
        if isinstance(side, Size):
            dimensions_of.update(side.dimensions)
        sides.append(_expression(side))
    return number_of(_BUILD[operator](*sides), dimensions_of)


def _compare(operator: str, left: Any, right: Any) -> Any:
    trace = tracing.get()
    are_sizes = is_size(left) and is_size(right)
    if trace is None or not are_sizes:
        are_numbers = all(is_size(side) or _is_float(side) for side in (left, right))
        if operator in ("==", "!=") or not are_numbers:
            return NotImplemented
        raise CompileError(
            f"whether {left} {operator} {right} is known only at a call", call_site(), _CONSTANT
        )
    form = trace.linear_difference(trace.expression(left), trace.expression(right))
    difference = trace.interval(form)
    holds, fails = _TESTS[operator]
    if holds(difference):
        return True
    if fails(difference):
        return False
    answer = trace.assumptions and trace.assumptions.answer(operator, left - right)
    if answer is None:
        raise _unknown(f"whether {left} {operator} {right}")
    return answer


def are_surely_equal(one: Any, other: Any) -> bool:
    """Whether extents are equal at all calls, without new assumptions; outside of a trace only numbers can be."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    trace = tracing.get()
    if trace is None or not (is_size(one) and is_size(other)):
        return one is other
    return trace.are_equal(trace.expression(one), trace.expression(other))


def quotient(whole: Number, divisor: Number) -> Number | None:
    """The exact quotient at all calls; None where there is none, or it isn't found.

    quotient(12 * m * n, 4 * n)    3 * m
    """
    sizes = [size for size in (whole, divisor) if isinstance(size, Size)]
    known = {
        variable: dimension for size in sizes for variable, dimension in size.dimensions.items()
    }
    scope = symbol_table(known)
    form = scope.form(_expression(whole))
    if not isinstance(divisor, Size):
        fits = divisor != 0 and scope.divides(divisor, form)
        return whole // divisor if fits else None
    # The quotient of the first products may be the result; a divisor of one product divides each product.
    (times, factors), *others = _monomials(scope.form(divisor.expression))
    parts: list[Expression] = []
    for count, product in _monomials(form)[: 1 if others else None]:
        if count % times or not factors <= product:
            return None
        atoms = (product - factors).elements()
        written = [atom if isinstance(atom, Variable) else atom.expression for atom in atoms]
        parts.append(build.product([count // times, *written]))
    result = reduce(build.add, parts, build.index(0))
    if scope.form(build.multiply(result, divisor.expression)) != form:
        return None
    return number_of(result, known)


def _monomials(form: Affine) -> list[tuple[int, Counter[Atom]]]:
    """The products whose sum is a form, each a coefficient and its atoms."""
    products = [(count, factors_of(atom)) for atom, count in form.terms.items()]
    return [*products, (form.constant, Counter())] if form.constant else products


def _expression(size: Number) -> Expression:
    return size.expression if isinstance(size, Size) else build.index(int(size))


def _nonumber_of(size: OfSizes) -> Exception:
    if tracing.get() is None:
        return TypeError(f"the value of '{size}' is known only at a call")
    return _unknown(f"the value of '{size}'")


def _unknown(what: str) -> CompileError:
    return CompileError(f"{what} is known only when the program is called", call_site(), _HINT)
