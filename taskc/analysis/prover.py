"""Proofs that a linear form is <= 0: by its bounds, or by a search.

Every step replaces the form by one that is at least as large, or by several of which one is. So a
proof of the last form proves the first; finding none says nothing. With k > 0:

    g of modulus m            ->  g - (r - 1)                   r its least positive value
    k*x, low <= x <= high     k*x   ->  k*high;  -k*x  ->  -k*low
    g + r // n                ->  n*g + r - (n - 1)             equivalent; likewise
    g - r // n                ->  n*g - r
    k*(r // n)                n*k*(r // n)  ->  k*r;  -n*k*(r // n)  ->  k*(n - 1) - k*r
    k*(r // n) + g, g <= high               r - n*(-high // k) - (n - 1); likewise for -k
    k*(r // d), d an atom     ->  k*(q - 1)                     where r < d*q
    k*(r % d), d an atom      ->  k*(d - 1)
    k*min(a, b)               ->  k*a  or  k*b;     -k*min(a, b)  ->  both
    k*select(c, a, b)         ->  both
    k*x*y, y >= 0             ->  k*high*y
    a known fact f <= 0       g     ->  u*g - v*f               u, v > 0, so that an atom cancels
                              g     ->  u*g - v*y*f             y >= 0, so that products cancel

A sum that could wrap in its type is an atom. Facts about its terms may exclude that:

    n: i64                    i + n  is an atom: a form reduced modulo 2**64
    assert 0 < n <= 4         i + n  is the form itself

A form is exact if its value surely fits its type. Atoms without a finite range don't
count, as everywhere (taskc.ir.linear): so n <= size - 32 suffices for i + n, too.

`addends` are the terms of an integer sum. `synchronize` and `layout` split an index into its uniform part and the rest,
`hoist` puts outer loops first, `overlap` finds the pixels of an image, proofs separate rows and columns, and the
simulator checks whether turns differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping as Dictionary
from dataclasses import field
from math import gcd
from types import MappingProxyType
from typing import TypeAlias

from taskc.dataclass import dataclass
from taskc.ir.affine import SymbolTable
from taskc.ir.linear import WRAPPED, Affine, Atom, Interval, Opaque, exact_quotient, factors_of
from taskc.ir.nodes import Binary, Constant, Expression, Variable
from taskc.ir.rewrite import operands_first
from taskc.ir.types import DType, i64


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
            if (
                type(atom) is Opaque
                and atom.kind == "*"
                and any(factor in self.intervals for factor, _ in atom.parts[0])
            ):
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


Names: TypeAlias = Dictionary[Variable, Expression]


def addends(
    expression: Expression,
    names: Names = MappingProxyType({}),
    opens: Callable[[Expression], bool] = lambda inner: True,
) -> list[tuple[Expression, int]]:
    """The terms, from left to right, each with its factor: -1 for one that is subtracted once.

    names  what is looked through
    opens  whether a sum that a constant multiplies is taken apart as well
    """
    known: dict[int, _Parts] = {}

    def sums(node: Expression) -> list[Expression]:
        parts = known[id(node)] = _parts(node, names, opens)
        return [part for part, _, is_sum in parts if is_sum]

    times: dict[int, int] = {id(expression): 1}
    terms: list[tuple[Expression, int]] = []
    # Every sum within the sum is expanded once, however often it is used.
    for node in reversed(operands_first(expression, sums)):
        count, parts = times[id(node)], known[id(node)]
        if not parts:
            terms.append((node, count))
        for part, factor, is_sum in reversed(parts):
            if is_sum:
                times[id(part)] = times.get(id(part), 0) + factor * count
            else:
                terms.append((part, factor * count))
    return terms[::-1]


_Parts: TypeAlias = tuple[tuple[Expression, int, bool], ...]


def _parts(node: Expression, names: Names, opens: Callable[[Expression], bool]) -> _Parts:
    """(part, factor, whether it is expanded) for a sum, a multiple, or a name; empty for anything else."""
    if type(node) is Variable:
        value = names.get(node)
        return () if value is None else ((value, 1, True),)
    if type(node) is not Binary:
        return ()
    if node.operator in ("+", "-"):
        return (node.left, 1, True), (node.right, 1 if node.operator == "+" else -1, True)
    if node.operator == "*":
        for inner, constant in ((node.left, node.right), (node.right, node.left)):
            if type(constant) is Constant and isinstance(constant.value, int) and constant.value:
                return ((inner, constant.value, opens(inner)),)
    return ()


_MOST_STEPS = 48
_MOST_FACTS = 2  # most facts that one proof subtracts


def nonpositive(facts: Known, form: Affine) -> bool:
    """Whether form <= 0 surely holds."""
    low, high = facts.interval_of(form)
    if high is not None and high <= 0:
        return True
    if low is not None and low > 0:
        return False
    # Bounds alone are a short search, which would be crowded out by facts.
    search = _Search(facts)
    if search.proves(form, 0):
        return True
    # A wider search is made only if it takes another way at a form that the last one looked at.
    if search.met_a_fact():
        search = _Search(facts)
        if search.proves(form, _MOST_FACTS):
            return True
    if _products(form) and search.met_a_product():
        search = _Search(facts, multiplies=True)
        if search.proves(form, _MOST_FACTS):
            return True
    exact = without_wrapping(facts, form)
    return exact is not None and nonpositive(facts, exact)


class _Search:
    """One proof, with the forms it failed at. Multiples of facts are many: they are tried if nothing else helped."""

    def __init__(self, facts: Known, *, multiplies: bool = False) -> None:
        self.facts = facts
        self.multiplies = multiplies
        self.steps = _MOST_STEPS
        self.seen: dict[Affine, int] = {}

    def proves(self, form: Affine, left: int) -> bool:
        """Whether form <= 0, with `left` further facts to use."""
        modulus, remainder = self.facts.congruence_of(form)
        if modulus == 0:
            return form.constant <= 0
        if modulus > 1:
            form = form - ((remainder or modulus) - 1)
        if self.seen.get(form, -1) >= left:
            return False
        low, high = self.facts.interval_of(form)
        if high is not None and high <= 0:
            return True
        if (low is not None and low > 0) or self.steps <= 0:
            return False
        self.seen[form] = left
        self.steps -= 1
        if self.multiplies and any(
            self.proves(simpler, left) for simpler in self._with_fewer_products(form)
        ):
            return True
        if left:
            for fact in self.facts.inequalities:
                combined = cancelling(form, fact)
                if combined is not None and self.proves(combined, left - 1):
                    return True
        atoms = sorted(form.terms, key=self._depth, reverse=True)
        return any(self._replacing(form, atom, left) for atom in atoms)

    def met_a_fact(self) -> bool:
        """Whether a fact cancels an atom of a form that was looked at."""
        facts = self.facts.inequalities
        return any(cancelling(form, fact) is not None for form in self.seen for fact in facts)

    def met_a_product(self) -> bool:
        """Whether a multiple of a fact cancels a product of a form that was looked at."""
        return any(self._with_fewer_products(form) for form in self.seen)

    def _depth(self, atom: Atom) -> int:
        """The order of replacing atoms: non-linear ones first, then the variables of inner loops."""
        if type(atom) is Opaque:
            return 1 << 30
        known = self.facts.scope.ranges.get(atom)  # type: ignore[arg-type]
        return -1 if known is None else known.order

    def _with_fewer_products(self, form: Affine) -> list[Affine]:
        """The form minus multiples of facts that eliminate products; fewest first."""
        products = _products(form)
        facts = self.facts.inequalities if products else ()
        reduced = [other for fact in facts for other in self._cancelling_products(form, fact)]
        return sorted((other for other in reduced if _products(other) < products), key=_products)

    def _cancelling_products(self, form: Affine, fact: Affine) -> Iterator[Affine]:
        """u*form - v*y*fact for each natural y such that y*fact has a product of the form."""
        scope = self.facts.scope
        for product, ours in form.terms.items():
            if type(product) is not Opaque or product.kind != "*":
                continue
            for atom, theirs in fact.terms.items():
                multiplier = exact_quotient(scope, scope.atom_form(product), scope.atom_form(atom))
                if ours * theirs < 0 or multiplier is None or multiplier.is_constant:
                    continue
                low = self.facts.interval_of(multiplier).low
                scaled = scope.product(fact, multiplier, product.expression)
                if low is None or low < 0 or not isinstance(scaled, Affine):
                    continue
                common = gcd(ours, theirs)
                yield form.scaled(abs(theirs) // common) - scaled.scaled(abs(ours) // common)

    def _replacing(self, form: Affine, atom: Atom, left: int) -> bool:
        factor = form.terms[atom]
        if type(atom) is not Opaque:
            bound = self._bound(atom, factor > 0)
            # The interval used a numeric bound already, but other terms may need it too.
            return bound is not None and self.proves(form.replacing(atom, bound), left)
        match atom.kind, atom.parts:
            case "//", (Affine() as inner, int(n)):
                return self.proves(_without_floor(form, atom, inner, n), left) or (
                    abs(factor) > 1 and self._rounding(form, atom, inner, n, left)
                )
            case "//", (Affine() as inner, Affine() as divisor):
                quotient = self._quotient_bound(inner, divisor) if factor > 0 else None
                return quotient is not None and self.proves(form.replacing(atom, quotient), left)
            case "%", (Affine(), Affine() as divisor):
                low = self.facts.interval_of(divisor).low
                if factor < 0 or low is None or low <= 0:
                    return False
                return self.proves(form.replacing(atom, divisor - 1), left)
            case "min" | "max", (frozenset() as options,):
                any_will_do = (factor > 0) == (atom.kind == "min")
                # A set has no order; the short forms decide most cases.
                shortest_first = sorted(options, key=lambda option: len(option.terms))
                cases = [form.replacing(atom, option) for option in shortest_first]
                if any_will_do:
                    return any(self.proves(case, left) for case in cases)
                return all(self.proves(case, left) for case in cases)
            case "select", (_, Affine() as then, Affine() as otherwise):
                return self.proves(form.replacing(atom, then), left) and self.proves(
                    form.replacing(atom, otherwise), left
                )
            case "*", (frozenset() as powers,):
                return self._replacing_factor(form, atom, dict(powers), left)
        return False

    def _rounding(self, form: Affine, atom: Opaque, inner: Affine, n: int, left: int) -> bool:
        """Bound the other terms by their interval: what the quotient must not exceed is then a whole number."""
        factor = form.terms[atom]
        high = self.facts.interval_of(form.without(atom)).high
        if high is None:
            return False
        if factor > 0:
            return self.proves(inner - (n * (-high // factor) + n - 1), left)
        return self.proves(-inner + n * -(high // factor), left)

    def _bound(self, atom: Atom, upper: bool) -> Affine | None:
        """The symbolic bound of a variable."""
        if type(atom) is Opaque:
            return None
        known = self.facts.scope.ranges.get(atom)  # type: ignore[arg-type]
        if known is None:
            return None
        return known.high if upper else known.low

    def _replacing_factor(
        self, form: Affine, atom: Opaque, powers: dict[Atom, int], left: int
    ) -> bool:
        """Replace one factor of a product by its bound, if the others are not negative."""
        scope = self.facts.scope
        factor = form.terms[atom]
        for part in sorted(powers, key=self._depth, reverse=True):
            bound = self._bound(part, factor > 0)
            if bound is None:
                continue
            others = {other: power for other, power in powers.items() if other != part}
            if powers[part] > 1:
                others[part] = powers[part] - 1
            other_factors = Affine(1, {}, 1)
            for other, power in others.items():
                low = self.facts.interval_of(scope.atom_form(other)).low
                if low is None or low < 0:
                    break
                for _ in range(power):
                    product = scope.product(other_factors, scope.atom_form(other), atom.expression)
                    other_factors = (
                        product if isinstance(product, Affine) else scope.atom_form(product)
                    )
            else:
                product = scope.product(other_factors, bound, atom.expression)
                if isinstance(product, Affine) and self.proves(form.replacing(atom, product), left):
                    return True
        return False

    def _is_positive(self, divisor: Affine) -> bool:
        """Whether it is surely positive: for a divisor of 0 a quotient is 0, not at most q - 1."""
        low = self.facts.interval_of(divisor).low
        return (low is not None and low > 0) or nonpositive(self.facts, -divisor + 1)

    def _quotient_bound(self, inner: Affine, divisor: Affine) -> Affine | None:
        """q - 1 where inner < divisor * q, for a positive divisor that is one atom, or a multiple of one."""
        low = self.facts.interval_of(divisor).low
        if low is None or low < 0:
            return None
        for fact in self.facts.inequalities:
            quotient = exact_quotient(self.facts.scope, inner - fact + 1, divisor)
            if quotient is not None:
                return quotient - 1 if self._is_positive(divisor) else None
        upper = inner
        for _ in range(len(inner.terms) + 1):
            quotient = exact_quotient(self.facts.scope, upper + 1, divisor)
            if quotient is not None:
                return quotient - 1 if self._is_positive(divisor) else None
            for atom in sorted(upper.terms, key=self._depth, reverse=True):
                bound = self._bound(atom, upper.terms[atom] > 0)
                if bound is not None:
                    upper = upper.replacing(atom, bound)
                    break
            else:
                return None
        return None


def _products(form: Affine) -> int:
    return sum(type(atom) is Opaque and atom.kind == "*" for atom in form.terms)


def _without_floor(form: Affine, atom: Opaque, inner: Affine, n: int) -> Affine:
    """A form that is <= 0 only where this one is, without its term k * (inner // n)."""
    factor = form.terms[atom]
    size = abs(factor)
    other_terms = form.without(atom)
    if all(other % size == 0 for other in other_terms.terms.values()):
        # Divided by |k|, inner // n + rest <= 0 is inner <= n - 1 - n * rest, and rest <= inner // n is n * rest <=
        # inner.
        terms = {other: k // size for other, k in other_terms.terms.items()}
        other_terms = Affine(-(-other_terms.constant // size), terms, other_terms.magnitude)
        if factor > 0:
            return other_terms.scaled(n) + inner - (n - 1)
        return other_terms.scaled(n) - inner
    common = gcd(size, n)
    # n * (inner // n) is in [inner - (n - 1), inner].
    replacement = inner if factor > 0 else inner - (n - 1)
    return other_terms.scaled(n // common) + replacement.scaled(factor // common)
