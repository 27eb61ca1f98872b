"""Turn the map of indices of a read round: from the elements that are read to those that read them.

    y[i, j] = f(x[i + 1])          dx[a] = sum over j of df(a - 1, j)       where 0 <= a - 1 < m
    y[q] = f(x[q // 4, q % 4])     dx[a, b] = df(a * 4 + b)
    y[i] = f(x[2 * i, 3])          dx[a, b] = df(a // 2)                    where a % 2 == 0 and b == 3
    y[i, k] = f(x[i + k])          dx[a] = sum over k of df(a - k, k)       where 0 <= a - k < m

An index that no rule turns round becomes a condition, `a == index`, and its variables are summed over. That is right
for any index; elements whose index is data are written to their places instead (walk.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable
from taskc.ir.build import add, ceiling_divide, equal, floor_divide, index, less, modulo, multiply
from taskc.ir.linear import Affine, Interval, Opaque
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import substitute, walk

Extent = int | Expression


@dataclass(slots=True)
class Turned:
    """The indices of reading elements, as functions of the element that is read and of what is summed over.

    places      the variables of the element that is read
    solved      the reading element's variables, by expressions of `places` and `summed`
    summed      variables that are summed over, with their extents
    conditions  hold where there is such a reading element
    late        likewise; they may read memory, where the read's own conditions hold
    """

    places: tuple[Variable, ...]
    solved: dict[Variable, Expression] = field(default_factory=dict)
    summed: dict[Variable, Extent] = field(default_factory=dict)
    conditions: list[Expression] = field(default_factory=list)
    late: list[Expression] = field(default_factory=list)

    def applied(self, expression: Expression) -> Expression:
        """An expression of the reading element's indices, over these."""
        return substitute(expression, self.solved)


def turned(
    indices: Sequence[Expression], shape: Sequence[Extent], extents: dict[Variable, Extent]
) -> Turned:
    """Turn the map from the variables of `extents` to `indices` in a tensor of this shape round."""
    return _Turning(indices, shape, dict(extents)).run()


class _Turning:
    """unknown   variables that no equation has determined, with their extents
    equations    an axis and its index, for each axis that is left
    """

    def __init__(
        self,
        indices: Sequence[Expression],
        shape: Sequence[Extent],
        unknown: dict[Variable, Extent],
    ) -> None:
        self.result = Turned(tuple([Variable(f"e{axis}") for axis in range(len(shape))]))
        self.shape = shape
        self.unknown = unknown
        self.equations = dict(enumerate(indices))
        self.digits: dict[Variable, tuple[Variable, int, Variable, Extent]] = {}
        self.scope = SymbolTable()
        for variable, extent in unknown.items():
            self.bind(variable, extent)

    def bind(self, variable: Variable, extent: Extent) -> None:
        high = extent - 1 if isinstance(extent, int) else None
        self.scope.bind_within(variable, Interval(0, high))

    def run(self) -> Turned:
        while self.split():
            pass
        while self.equations and (self.step(False) or self.step(True)):
            pass
        result = self.result
        solved: dict[Variable, Expression] = {}
        for variable, value in reversed(result.solved.items()):
            solved[variable] = substitute(value, solved)  # of variables that were solved later
        result.conditions = [substitute(one, solved) for one in result.conditions]
        result.solved, result.summed = solved, self.unknown
        self.join()
        for axis, at in self.equations.items():
            if self.shape[axis] != 1:
                result.late.append(equal(result.places[axis], substitute(at, solved)))
        return result

    # Variables that are read by digits: x[q // 4, q % 4].

    def split(self) -> bool:
        """Replace one variable by a quotient and a remainder, if an index has one of them."""
        atoms = [atom for at in self.equations.values() for atom in self.scope.form(at).terms]
        found: list[tuple[int, Variable]] = []
        for atom in atoms:
            if not isinstance(atom, Opaque) or atom.kind not in ("//", "%"):
                continue
            form, divisor = atom.parts[:2]
            if not isinstance(form, Affine) or form.constant or len(form.terms) != 1:
                continue
            ((variable, factor),) = form.terms.items()
            if isinstance(variable, Opaque) or variable not in self.unknown or factor != 1:
                continue
            if isinstance(divisor, int) and divisor > 1:
                found.append((divisor, variable))
        if not found:
            return False
        divisor, variable = min(found, key=lambda one: one[0])
        extent = self.unknown.pop(variable)
        high, low = Variable(f"{variable.name}_q"), Variable(f"{variable.name}_r")
        self.digits[variable] = high, divisor, low, extent
        for digit, count in (
            (high, _quotient(extent, divisor)),
            (low, divisor),
        ):
            self.unknown[digit] = count
            self.bind(digit, count)
        whole = {variable: add(multiply(high, divisor), low)}
        self.equations = {axis: substitute(at, whole) for axis, at in self.equations.items()}
        return True

    def join(self) -> None:
        """Determine the variables that were replaced by digits."""
        result = self.result
        for variable, (high, divisor, low, extent) in reversed(self.digits.items()):
            value = add(multiply(high, divisor), low)
            value = result.solved[variable] = substitute(value, result.solved)
            if not isinstance(extent, int) or extent % divisor:
                result.conditions.append(less(value, index(extent)))

    # Equations.

    def step(self, is_last_resort: bool) -> bool:
        """Determine variables by one equation; as a last resort one whose other variables are summed over."""
        for axis, at in self.equations.items():
            form = self.scope.form(at)
            if any(isinstance(atom, Opaque) and self.is_open(atom) for atom in form.terms):
                continue
            factors = {
                atom: n
                for atom, n in form.terms.items()
                if isinstance(atom, Variable) and atom in self.unknown
            }
            if not factors:
                continue
            order = self.radix(factors)
            if order is None and not is_last_resort:
                continue
            if order is None:
                order = [max(factors, key=lambda one: self.size(one))]
            known = form
            for variable in order:
                known = known.without(variable)
            del self.equations[axis]
            self.solve(axis, known, [(one, factors[one]) for one in order])
            return True
        return False

    def is_open(self, atom: Opaque) -> bool:
        """Whether an atom depends on variables that aren't determined, or on data."""
        return any(
            isinstance(node, ir.Read) or (isinstance(node, Variable) and node in self.unknown)
            for node in walk(atom.expression)
        )

    def size(self, variable: Variable) -> float:
        extent = self.unknown[variable]
        return extent if isinstance(extent, int) else float("inf")

    def radix(self, factors: dict[Variable, int]) -> list[Variable] | None:
        """The variables from the slowest on, if a sum of their multiples determines each; else None."""
        order = sorted(factors, key=lambda one: (-abs(factors[one]), self.size(one)))
        if len(order) > 1 and any(factor < 0 for factor in factors.values()):
            return None
        most = 0.0
        for variable in reversed(order):
            if abs(factors[variable]) <= most:
                return None
            most += abs(factors[variable]) * (self.size(variable) - 1)
        return order

    def solve(self, axis: int, known: Affine, order: list[tuple[Variable, int]]) -> None:
        """Determine variables, slowest first, from `place == known + the sum of factor * variable`."""
        result, place = self.result, self.result.places[axis]
        rest: Expression = place
        if known.terms or known.constant:
            rest = ir.Binary("-", place, substitute(known.to_expression(), result.solved))
        left = None
        for variable, factor in order:
            extent = self.unknown.pop(variable)
            if factor < 0:
                rest, factor = ir.Binary("-", index(0), rest), -factor
            value = floor_divide(rest, factor)
            left = modulo(rest, factor) if factor > 1 else None
            if not self.is_within(value, axis, extent):
                bounds = ir.Binary("<=", index(0), value), less(value, index(extent))
                result.conditions += bounds
            result.solved[variable] = value
            rest = rest if left is None else left
        if left is not None:
            result.conditions.append(equal(left, 0))

    def is_within(self, value: Expression, axis: int, extent: Extent) -> bool:
        """Whether a place of an axis is surely an index of this extent."""
        whole = self.shape[axis]
        if value is not self.result.places[axis]:
            return False
        if isinstance(whole, int) and isinstance(extent, int):
            return whole <= extent
        return index(whole) == index(extent)


def _quotient(extent: Extent, divisor: int) -> Extent:
    if isinstance(extent, int):
        return -(-extent // divisor)
    return ceiling_divide(extent, divisor)
