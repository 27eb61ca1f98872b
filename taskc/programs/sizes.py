"""The facts about sizes where a program is traced: dimensions, steps of loops, and assumptions.

    positions[:n] if n < 512 else positions        traced where n is 128: it is positions[:n], and n < 512 is assumed

Python branches on the answer to a question, so a trace is valid for calls whose sizes give the same answers. A
trace with assumptions answers from example sizes, and records each question; whoever calls the program asks
`serve` first. A trace without them refuses a question whose answer isn't the same for all sizes.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterator, Mapping

from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.ir import build
from taskc.ir.affine import SymbolTable
from taskc.ir.extents import extent_value
from taskc.ir.linear import ZERO, Affine, Atom, Interval, Opaque, factors_of
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import substitute, walk
from taskc.ir.types import i64
from taskc.lang.sizes import Answers, Dimension, Number, OfSizes, Size, number_of, symbol_table
from taskc.lang.source import call_site

_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "==": python.eq, "!=": python.ne, "<": python.lt, "<=": python.le, ">": python.gt, ">=": python.ge,
}  # fmt: skip


class StepNumber(Dimension):
    """The number of a loop's step, from 0 on; a size in the loop's body."""

    __slots__ = ()


class Sizes:
    """The known facts about the sizes of a program that is being traced."""

    def __init__(self, name: str, dimensions: dict[Dimension, Variable]) -> None:
        self.name = name
        self.variables = dimensions  # and those of the loops whose bodies are running
        self.loops: list[Steps] = []
        self.assumptions: Answers | None = None
        self._scope = symbol_table(dimensions.values())

    def expression(self, value: int | OfSizes) -> Expression:
        """A size as an expression of the program's dimensions."""
        return value.over(self._variable) if isinstance(value, OfSizes) else build.index(int(value))

    def _variable(self, dimension: Dimension) -> Variable:
        if dimension not in self.variables:
            if isinstance(dimension, StepNumber):
                raise CompileError(
                    f"'{dimension}' is the number of a loop's step, and its loop is over",
                    call_site(),
                )
            raise CompileError(
                f"the dimension '{dimension}' is not an extent of any parameter of '{self.name}'",
                call_site(),
                "its size is learned from the arguments of a call",
            )
        return self.variables[dimension]

    def enter(self, variable: Variable, count: int | Expression) -> Size:
        """Enter the body of a loop; returns the size that stands for the step's number."""
        dimension = StepNumber(Variable(variable.name, i64), 0)
        steps = Steps(self._scope, variable, count)
        self._scope.bind(variable, ZERO, steps.count - 1)
        self.variables[dimension] = variable
        self.loops.append(steps)
        return dimension

    def leave(self) -> None:
        """Leave the body of the innermost loop, whose step number is undefined from here on."""
        variable = self.loops.pop().variable
        number = next(size for size, own in self.variables.items() if own is variable)
        del self.variables[number]

    def number(self, expression: Expression) -> Number:
        """An expression as the program's Python sees it."""
        own = {variable: dimension.variable for dimension, variable in self.variables.items()}
        dimensions = {dimension.variable: dimension for dimension in self.variables}
        return number_of(substitute(expression, own), dimensions)

    def extent(self, expression: Expression) -> int | Expression:
        """An expression as the extent of a tensor."""
        form = self._scope.form(expression)
        return form.constant if form.is_constant else expression

    def are_equal(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether two extents are equal for all sizes."""
        return self.linear_difference(left, right) == ZERO

    def linear_difference(self, left: int | Expression, right: int | Expression) -> Affine:
        difference = self._scope.form(build.index(left)) - self._scope.form(build.index(right))
        if self.assumptions is not None and len(difference.terms) > 1:
            self.assumptions.note(self.number(difference.to_expression()))
        return difference

    def form(self, size: int | Expression) -> Affine:
        return self._scope.form(build.index(size))

    def interval(self, form: Affine) -> Interval:
        """Bounds of a form for all sizes; those of its first and last step if it is monotonic in a loop's steps."""
        bounds = self._scope.interval_of(form)
        if None not in bounds:
            return bounds
        for steps in reversed(self.loops):
            slope = steps.slope(form)
            if slope:
                ends = steps.first(form), steps.last(form)
                low, high = ends if slope > 0 else ends[::-1]
                return bounds.meet(Interval(self.interval(low).low, self.interval(high).high))
        return bounds

    def is_natural(self, form: Affine) -> bool:
        """Whether a form is 0 or more for all sizes."""
        if not form.terms:
            return form.constant >= 0
        low = self.interval(form).low
        return low is not None and low >= 0

    def divides(self, divisor: int, extent: int | Expression) -> bool:
        """Whether an extent is a multiple of `divisor` for all sizes."""
        return self._scope.divides(divisor, self._scope.form(build.index(extent)))


class Steps:
    """The `count` steps of a loop that is traced, and the values of sizes in the first, next and last of them.

    variable  the number of each step
    """

    def __init__(self, scope: SymbolTable, variable: Variable, count: int | Expression) -> None:
        self.scope = scope
        self.variable = variable
        self.count = scope.form(build.index(count))

    def _at(self, form: Affine, number: Affine) -> Affine:
        if not any(_is_in(self.variable, atom) for atom in form.terms):
            return form
        value = {self.variable: number.to_expression()}
        return self.scope.form(substitute(form.to_expression(), value))

    def first(self, form: Affine) -> Affine:
        return self._at(form, ZERO)

    def next(self, form: Affine) -> Affine:
        return self._at(form, self.scope.form(self.variable) + 1)

    def last(self, form: Affine) -> Affine:
        return self._at(form, self.count - 1)

    def end(self, form: Affine) -> Affine:
        """The value of a form in the step after the last, which doesn't run."""
        return self._at(form, self.count)

    def slope(self, form: Affine) -> int:
        """1 where a form surely never falls from a step to the next, -1 where it never rises, 0 if level or unknown."""
        slopes = set()
        for atom, factor in form.terms.items():
            factors = factors_of(atom)
            power = factors.pop(self.variable, 0)
            if any(_is_in(self.variable, part) for part in factors):
                return 0
            if power:
                lows = [self.scope.interval_of_atom(part).low for part in factors]
                if power != 1 or any(low is None or low < 0 for low in lows):
                    return 0
                slopes.add(1 if factor > 0 else -1)
        return slopes.pop() if len(slopes) == 1 else 0


def _is_in(variable: Variable, atom: Atom) -> bool:
    return atom is variable or (isinstance(atom, Opaque) and variable in walk(atom.expression))


@dataclass(frozen=True, slots=True)
class Assumption:
    """Whether `difference operator 0` holds."""

    difference: Size
    operator: str
    holds: bool

    def __str__(self) -> str:
        text = f"{self.difference} {self.operator} 0"
        return text if self.holds else f"not {text}"


class Assumptions:
    """The answers at these sizes of a program's dimensions, as far as they were asked for.

    differences  of sizes that were compared, and are equal at these sizes though not at all
    """

    def __init__(self, sizes: Mapping[Dimension, int]) -> None:
        self.sizes = sizes
        self.differences: dict[str, Size] = {}
        self._made: dict[str, Assumption] = {}

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._made.values())

    def answer(self, operator: str, difference: Size) -> bool | None:
        """Whether `difference operator 0`; None where it depends on more than dimensions, as on a loop's step."""
        if any(dimension not in self.sizes for dimension in difference.dimensions.values()):
            return None
        holds = _is_so(operator, difference, self.sizes)
        assumption = Assumption(difference, operator, holds)
        self._made.setdefault(str(assumption), assumption)
        return holds

    def note(self, difference: Number) -> None:
        if (
            isinstance(difference, Size)
            and {*difference.dimensions.values()} <= self.sizes.keys()
            and value_at(difference, self.sizes) == 0
        ):
            self.differences.setdefault(str(difference), difference)

    def serve(self, sizes: Mapping[Dimension, int]) -> bool:
        """Whether all that was asked has the same answers at these sizes."""
        return all(_is_so(it.operator, it.difference, sizes) is it.holds for it in self)


def _is_so(operator: str, difference: Size, sizes: Mapping[Dimension, int]) -> bool:
    return _HOLDS[operator](value_at(difference, sizes), 0)


def value_at(size: Size, sizes: Mapping[Dimension, int]) -> int:
    """The number that a size is at these sizes of the dimensions."""
    known = {variable: sizes[own] for variable, own in size.dimensions.items()}
    return extent_value(size.expression, known)
