"""Numbers that are known at a point of a program: intervals, remainders, and how linear forms compare.

What a search finds beyond intervals is told in taskc.analysis.prover, and what wraps around in taskc.analysis.wrapping.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from taskc.analysis.prover import is_nonpositive
from taskc.analysis.wrapping import unwrapped
from taskc.ir import nodes as ir
from taskc.ir.affine import Affine, Atom, Opaque, Scope
from taskc.ir.interval import Interval
from taskc.ir.linear import factors_of
from taskc.ir.nodes import Binary, Expression
from taskc.ir.types import boolean


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What `Facts` are made of.

    inequalities   forms that are <= 0
    truths         boolean atoms, and whether they hold
    intervals      atoms that conditions bound more tightly than the scope does
    moduli         forms known to be multiples of a number
    """

    scope: Scope
    inequalities: tuple[Affine, ...] = ()
    truths: dict[Opaque, bool] = field(default_factory=dict)
    intervals: dict[Atom, Interval] = field(default_factory=dict)
    moduli: dict[Atom, int] = field(default_factory=dict)

    def affine(self, expression: Expression) -> Affine:
        """Its linear form; Lets are looked through."""
        return self.scope.form(expression)

    def difference(self, left: Expression, right: Expression) -> int | None:
        """left - right where that is one number."""
        form = self.scope.form(left) - self.scope.form(right)
        return form.constant if form.is_constant else None

    def congruence(self, expression: Expression) -> tuple[int, int]:
        """(m, r): the value is r modulo m; m is 0 where it is the constant r."""
        return self.congruence_of(self.scope.form(expression))

    def congruence_of(self, form: Affine) -> tuple[int, int]:
        if not self.moduli:
            return self.scope.congruence_of(form)
        modulus, total = 0, form.constant
        for atom, factor in form.terms.items():
            step, remainder = self.scope.congruence_of_atom(atom)
            known = self.moduli.get(atom, 1)
            if remainder == 0:
                step = step * known // gcd(step, known)
            elif known % step == 0:
                step, remainder = known, 0
            modulus = gcd(modulus, factor * step)
            total += factor * remainder
        return modulus, total % modulus if modulus else total

    def divisible(self, expression: Expression, divisor: int) -> bool:
        modulus, remainder = self.congruence(expression)
        return modulus % divisor == 0 and remainder % divisor == 0

    def interval(self, expression: Expression) -> Interval:
        """Numeric bounds of an integer expression."""
        form = self.scope.form(expression)
        return self.interval_of(unwrapped(self, form) or form)

    def interval_of(self, form: Affine) -> Interval:
        general = self.scope.interval_of(form)
        if not self.intervals or not form.terms:
            return general
        total = Interval(form.constant, form.constant)
        for atom, factor in form.terms.items():
            low, high = self.interval_of_atom(atom).scaled(factor)
            total = Interval(
                None if total.low is None or low is None else total.low + low,
                None if total.high is None or high is None else total.high + high,
            )
        return general.meet(total)

    def interval_of_atom(self, atom: Atom) -> Interval:
        found = self.intervals.get(atom)
        if found is None:
            found = self.scope.interval_of_atom(atom)
            if type(atom) is Opaque and atom.kind == "*" and self.intervals:
                product = Interval(1, 1)
                for factor, power in factors_of(atom).items():
                    for _ in range(power):
                        product = product.times(self.interval_of_atom(factor))
                found = found.meet(product)
        return found

    # Comparisons.

    def compare(self, condition: Binary) -> bool | None:
        form = self.scope.form(condition.left) - self.scope.form(condition.right)
        match condition.operator:
            case "<":
                return self._decide(form + 1)
            case "<=":
                return self._decide(form)
            case ">":
                return self._decide(-form + 1)
            case ">=":
                return self._decide(-form)
        equal = self._prove_zero(form)
        return equal if equal is None or condition.operator == "==" else not equal

    def _decide(self, form: Affine) -> bool | None:
        """Whether form <= 0."""
        if self.nonpositive(form):
            return True
        return False if self.nonpositive(-form + 1) else None

    def _prove_zero(self, form: Affine) -> bool | None:
        if form.is_constant:
            return form.constant == 0
        if self.congruence_of(form)[1] or self.truths.get(equality(form)) is False:
            return False
        if self.nonpositive(form + 1) or self.nonpositive(-form + 1):
            return False
        return True if self.nonpositive(form) and self.nonpositive(-form) else None

    def nonpositive(self, form: Affine) -> bool:
        """form <= 0 surely holds."""
        low, high = self.interval_of(form)
        if high is not None and high <= 0:
            return True
        if low is not None and low > 0:
            return False
        if is_nonpositive(self, form):
            return True
        exact = unwrapped(self, form)
        return exact is not None and self.nonpositive(exact)


def equality(form: Affine) -> Opaque:
    """The atom for form == 0, the same one for -form."""
    flipped = -form
    return Opaque("== 0", (frozenset((form, flipped)),), ir.Constant(False, boolean))
