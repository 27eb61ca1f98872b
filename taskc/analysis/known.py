"""Known numbers at a point of a program: the range of a linear form, and its remainders.

Wrapping is handled in taskc.analysis.wrapping, and further search in taskc.analysis.prover.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from taskc.ir.affine import Affine, Atom, Opaque, SymbolTable
from taskc.ir.interval import Interval
from taskc.ir.linear import factors_of


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The premises of a search for a proof.

    inequalities   forms that are <= 0
    intervals      atoms that conditions bound more tightly than the scope does
    moduli         forms known to be multiples of a number
    """

    scope: SymbolTable
    inequalities: tuple[Affine, ...] = ()
    intervals: dict[Atom, Interval] = field(default_factory=dict)
    moduli: dict[Atom, int] = field(default_factory=dict)

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
        interval = self.intervals.get(atom)
        if interval is None:
            interval = self.scope.interval_of_atom(atom)
            if type(atom) is Opaque and atom.kind == "*" and self.intervals:
                product = Interval(1, 1)
                for factor, power in factors_of(atom).items():
                    for _ in range(power):
                        product = product.times(self.interval_of_atom(factor))
                interval = interval.meet(product)
        return interval


def cancelling(form: Affine, fact: Affine) -> Affine | None:
    """u*form - v*fact without an atom that both have with the same sign."""
    for atom, theirs in fact.terms.items():
        ours = form.terms.get(atom, 0)
        if ours * theirs > 0:
            common = gcd(ours, theirs)
            return form.scaled(abs(theirs) // common) - fact.scaled(abs(ours) // common)
    return None
