"""Sums that could wrap in their type, but surely don't, given facts about their terms.

    n: i64                    i + n  is an atom: a form reduced modulo 2**64
    assert 0 < n <= 4         i + n  is the form itself

A form is exact if its value surely fits its type. Atoms without a finite range don't
count, as everywhere (taskc.ir.interval): so n <= size - 32 suffices for i + n, too.
"""

from __future__ import annotations

from taskc.analysis.known import Known, cancelling
from taskc.ir.linear import WRAPPED, Affine, Atom, Opaque, factors_of
from taskc.ir.types import DType, i64


def without_wrapping(facts: Known, form: Affine) -> Affine | None:
    """The form with every atom that surely doesn't wrap replaced by its form; None if unchanged."""
    replaced = None
    for atom in form.terms:
        if type(atom) is Opaque and atom.kind == WRAPPED:
            inner, dtype = atom.parts
            inner = without_wrapping(facts, inner) or inner
            if _is_exact(facts, atom, inner, dtype):
                replaced = (replaced or form).replacing(atom, inner)
    return replaced


def _is_exact(facts: Known, atom: Opaque, form: Affine, dtype: DType) -> bool:
    """Whether the form's value fits the type."""
    if _stays_below(facts, form, int(dtype.maximum), dtype):
        return _stays_below(facts, -form, -int(dtype.minimum), dtype)
    # A value that exceeds the type by less than a full turn would be negative after wrapping.
    low, high = facts.interval_of(form)
    least = facts.interval_of(facts.scope.atom_form(atom)).low
    natural = low is not None and low >= 0 and least is not None and least >= 0
    return natural and dtype.is_signed and high is not None and high < 1 << dtype.bits


def _stays_below(facts: Known, form: Affine, limit: int, dtype: DType) -> bool:
    """Whether form <= limit, a natural number; directly, or by one of the facts."""
    candidates = (cancelling(form, fact) for fact in facts.inequalities)
    for larger in (form, *(candidate for candidate in candidates if candidate is not None)):
        highest = larger.constant
        for atom, factor in larger.terms.items():
            high = facts.interval_of(facts.scope.atom_form(atom)).scaled(factor).high
            if high is None and dtype is not i64:
                break
            # A number from memory may be large, even in arithmetic with unbounded ones.
            highest += abs(factor) * _magnitude(facts, atom) if high is None else high
        else:
            if highest <= limit:
                return True
    return False


def _magnitude(facts: Known, atom: Atom) -> int:
    """The magnitude of an atom; for an unbounded product that of its factors, sizes not counted."""
    if type(atom) is not Opaque or atom.kind != "*":
        return facts.scope.atom_form(atom).magnitude
    product = 1
    for factor, power in factors_of(atom).items():
        low, high = facts.interval_of(facts.scope.atom_form(factor))
        is_finite = low is not None and high is not None
        known = max(abs(low or 0), abs(high or 0)) if is_finite else _magnitude(facts, factor)
        product *= max(1, known) ** power
    return product
