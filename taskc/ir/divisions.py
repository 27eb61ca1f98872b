"""Floor division and modulo of linear forms.

With n a positive constant, q and r forms, and g a divisor of n:

    (n*q + r) // n  ->  q + r // n              (n*q + r) % n  ->  r % n
    r // n          ->  0       for 0 <= r < n
    r % n           ->  r       for 0 <= r < n
    (g*q + r) // n  ->  q // (n/g)              for 0 <= r < g
    (g*q + r) % n   ->  g * (q % (n/g)) + r     for 0 <= r < g
    (x // m) // n   ->  x // (m*n)
    (x % m) // n    ->  (x // n) % (m/n)        for n dividing m
    (x % m) % n     ->  x % n                   for n dividing m
"""

from __future__ import annotations

from math import gcd
from typing import Protocol

from taskc.ir.linear import ZERO, Affine, Atom, Interval, Opaque, factors_of
from taskc.ir.nodes import Binary, Constant, Expression
from taskc.ir.types import DType


class Ranges(Protocol):
    """The queries about names and forms that divisions need, answered by `taskc.ir.affine.SymbolTable`."""

    def interval_of(self, form: Affine) -> Interval: ...
    def congruence_of(self, form: Affine) -> tuple[int, int]: ...
    def congruence_of_atom(self, atom: Atom) -> tuple[int, int]: ...
    def fits(self, form: Affine, dtype: DType) -> bool: ...
    def atom_form(self, atom: Atom) -> Affine: ...
    def product(self, left: Affine, right: Affine, expression: Expression) -> Affine | Opaque: ...


def floor_divided(
    ranges: Ranges, form: Affine, n: int, dtype: DType, written: Expression | None = None
) -> Affine:
    """form // n; `written` is the program's own expression for it."""
    if n == 1:
        return form
    multiple, remainder = _whole_and_rest(form, n)
    low, high = ranges.interval_of(remainder)
    if low is not None and high is not None and low // n == high // n:
        return multiple + low // n
    count = n
    split = _split(ranges, remainder, n)
    if split is not None:
        g, remainder, _ = split
        if g < n and all(factor % g == 0 for factor in remainder.terms.values()):
            remainder, n = remainder.quotient(g), n // g
    inner, m, kind = _nested(remainder)
    if inner is not None and kind == "//" and m * n <= dtype.maximum:
        return multiple + floor_divided(ranges, inner, m * n, dtype)
    if inner is not None and kind == "%" and m % n == 0:
        return multiple + modulo(ranges, floor_divided(ranges, inner, n, dtype), m // n, dtype)
    if not ranges.fits(remainder, dtype):  # the whole form does
        return ranges.atom_form(_opaque(ranges, "//", form, count, form, dtype, written))
    return multiple + ranges.atom_form(_opaque(ranges, "//", remainder, n, form, dtype, written))


def modulo(
    ranges: Ranges, form: Affine, n: int, dtype: DType, written: Expression | None = None
) -> Affine:
    """form % n."""
    if n == 1:
        return ZERO
    _, remainder = _whole_and_rest(form, n)
    low, high = ranges.interval_of(remainder)
    if low is not None and high is not None and low // n == high // n:
        return remainder - n * (low // n)
    split = _split(ranges, remainder, n)
    added = ZERO
    if split is not None:
        g, remainder, added = split
        if g == n:
            return added
        if all(factor % g == 0 for factor in remainder.terms.values()):
            smaller = remainder.quotient(g)
            if ranges.fits(smaller, dtype):
                return modulo(ranges, smaller, n // g, dtype).scaled(g) + added
    inner, m, kind = _nested(remainder)
    if inner is not None and kind == "%" and m % n == 0:
        return added + modulo(ranges, inner, n, dtype)
    if not ranges.fits(remainder, dtype):
        return ranges.atom_form(_opaque(ranges, "%", form, n, form, dtype, written))
    return added + ranges.atom_form(_opaque(ranges, "%", remainder, n, form, dtype, written))


def _nested(form: Affine) -> tuple[Affine | None, int, str]:
    """(x, m, operator) where the form is just x // m or x % m."""
    if len(form.terms) == 1 and not form.constant:
        ((atom, factor),) = form.terms.items()
        if factor == 1 and type(atom) is Opaque and atom.kind in ("//", "%"):
            inner, m = atom.parts
            if isinstance(m, int):
                return inner, m, atom.kind
    return None, 0, ""


def by_symbol(ranges: Ranges, form: Affine, divisor: Affine) -> Affine | None:
    """form // divisor, where every term has the divisor, a positive atom or a multiple of one, as a factor."""
    low = ranges.interval_of(divisor).low
    if low is None or low <= 0 or not form.terms:
        return None
    return exact_quotient(ranges, form, divisor)


def exact_quotient(ranges: Ranges, form: Affine, divisor: Affine) -> Affine | None:
    """The form divided by `divisor`, a multiple of an atom that is a factor of every term; else None."""
    if form.constant or divisor.constant or len(divisor.terms) != 1:
        return None
    ((symbol, count),) = divisor.terms.items()
    if any(factor % count for factor in form.terms.values()):
        return None
    divisor_factors = factors_of(symbol)
    total = ZERO
    for atom, factor in form.terms.items():
        factors = factors_of(atom)
        if any(factors[part] < power for part, power in divisor_factors.items()):
            return None
        cofactor = Affine(1, {}, 1)
        for part, power in (factors - divisor_factors).items():
            for _ in range(power):
                product = ranges.product(cofactor, ranges.atom_form(part), part_expression(part))
                assert type(product) is Affine
                cofactor = product
        total = total + cofactor.scaled(factor // count)
    return total


def part_expression(atom: Atom) -> Expression:
    return atom.expression if type(atom) is Opaque else atom  # type: ignore[return-value]


def _whole_and_rest(form: Affine, n: int) -> tuple[Affine, Affine]:
    """(q, r) with form == n * q + r, where r has no multiples of n."""
    whole: dict[Atom, int] = {}
    rest: dict[Atom, int] = {}
    for atom, factor in form.terms.items():
        count = factor // n if factor % n == 0 else 0
        if count:
            whole[atom] = count
        else:
            rest[atom] = factor
    constant, remainder = divmod(form.constant, n)
    if not whole and not constant:
        return ZERO, form
    return (
        Affine(constant, whole, form.magnitude),
        Affine(remainder, rest, form.magnitude + n),
    )


def _split(ranges: Ranges, form: Affine, n: int) -> tuple[int, Affine, Affine] | None:
    """(g, coarse, fine): coarse + fine == form, g | n, g | coarse, 0 <= fine < g, 1 < g."""
    divisors = []
    for atom, factor in form.terms.items():
        modulus, remainder = ranges.congruence_of_atom(atom)
        divisors.append(gcd(n, factor * modulus, factor * remainder))
    for g in sorted(set(divisors), reverse=True):
        if g == 1:
            return None
        coarse: dict[Atom, int] = {}
        fine: dict[Atom, int] = {}
        for (atom, factor), divisor in zip(form.terms.items(), divisors, strict=True):
            (fine if divisor % g else coarse)[atom] = factor
        remainder = form.constant % g
        small = Affine(remainder, fine, form.magnitude)
        low, high = ranges.interval_of(small)
        if low is not None and low >= 0 and high is not None and high < g:
            if g < n and not fine and not remainder and any(k % g for k in coarse.values()):
                continue  # nothing to drop, and the coefficients have no common divisor
            return g, Affine(form.constant - remainder, coarse, form.magnitude), small
    return None


def _opaque(
    ranges: Ranges,
    kind: str,
    rest: Affine,
    n: int,
    form: Affine,
    dtype: DType,
    written: Expression | None,
) -> Opaque:
    """The atom rest // n or rest % n, with the program's own expression where that is exactly it."""
    interval = ranges.interval_of(rest)
    modulus, remainder = 1, 0
    if kind == "//":
        interval = interval.floor_divided(n)
    else:
        interval = interval.modulo(n)
        step, offset = ranges.congruence_of(rest)
        modulus = gcd(step, n)
        remainder = offset % modulus
    same = isinstance(written, Binary) and rest is form and written.right == Constant(n, dtype)
    if written is None or not same:
        written = Binary(kind, rest.to_expression(dtype), Constant(n, dtype))
    return Opaque(kind, (rest, n), written, interval, modulus, remainder, rest.volatile)
