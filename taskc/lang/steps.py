"""A loop of a program while its body is traced: the values of sizes in its first, next and last step."""

from __future__ import annotations

from taskc.ir import build
from taskc.ir.affine import SymbolTable
from taskc.ir.linear import ZERO, Affine, Atom, Opaque, factors_of
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import substitute, walk


class Steps:
    """The `count` steps of a loop; `variable` is the number of each."""

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
