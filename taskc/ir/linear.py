"""Integer linear forms: constant + sum of coefficient * atom.

An atom is a Variable, compared by identity, or an Opaque: a subexpression that is not linear,
compared by its structure, so that equal ones cancel. A product of atoms is an Opaque of the kind
"*" whose factors are a set; forms with such atoms are polynomials, and multiply as such.

Values of forms lie in intervals. A bound of None is infinite: it stands for index arithmetic on sizes that are known
only at the call. Such numbers count elements or iterations, so they are taken never to reach 2**63.

Floor division and modulo are simplified where they are made. With n a positive constant, q and r forms, and g a divisor
of n:

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

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from math import gcd
from typing import Any, NamedTuple, Protocol

from taskc.dataclass import dataclass
from taskc.ir.nodes import Binary, Cast, Constant, Expression, Unary, Variable
from taskc.ir.types import DType, i64


class Interval(NamedTuple):
    """The integers from `low` to `high`, both included."""

    low: int | None
    high: int | None

    def __str__(self) -> str:
        low = "-inf" if self.low is None else self.low
        high = "inf" if self.high is None else self.high
        return f"[{low}, {high}]"

    @property
    def is_wide(self) -> bool:
        """Whether adding another such number might overflow 64 bits; sizes never do."""
        low, high = self
        return (high is not None and high >= _WIDE) or (low is not None and low <= -_WIDE)

    def inside(self, other: Interval) -> bool:
        """Whether this interval is finite and within the other."""
        if self.low is None or self.high is None:
            return False
        return (other.low is None or other.low <= self.low) and (
            other.high is None or self.high <= other.high
        )

    def meet(self, other: Interval) -> Interval:
        """The intersection."""
        return Interval(_tighter(max, self.low, other.low), _tighter(min, self.high, other.high))

    def join(self, other: Interval) -> Interval:
        """The smallest interval that contains both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(low, high)

    def minimum(self, other: Interval) -> Interval:
        """The interval of min(x, y) for x and y in the two."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        return Interval(low, _tighter(min, self.high, other.high))

    def maximum(self, other: Interval) -> Interval:
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(_tighter(max, self.low, other.low), high)

    def scaled(self, factor: int) -> Interval:
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        if factor == 0:
            return Interval(0, 0)
        return Interval(low, high) if factor > 0 else Interval(high, low)

    def times(self, other: Interval) -> Interval:
        a, b = self.low, self.high
        c, d = other.low, other.high
        if a is not None and b is not None and c is not None and d is not None:
            products = (a * c, a * d, b * c, b * d)
            return Interval(min(products), max(products))
        if a is not None and a >= 0 and c is not None and c >= 0:
            return Interval(a * c, None)
        return EVERYTHING

    def floor_divided(self, divisor: int) -> Interval:
        """The interval of x // divisor, for a positive divisor."""
        low = None if self.low is None else self.low // divisor
        high = None if self.high is None else self.high // divisor
        return Interval(low, high)

    def modulo(self, divisor: int) -> Interval:
        """The interval of x % divisor, for a positive divisor."""
        low, high = self
        if low is not None and high is not None and low // divisor == high // divisor:
            return Interval(low % divisor, high % divisor)
        return Interval(0, divisor - 1)

    def absolute(self) -> Interval:
        low, high = self
        if low is not None and low >= 0:
            return self
        if high is not None and high <= 0:
            return self.scaled(-1)
        return Interval(0, None if low is None or high is None else max(-low, high))


EVERYTHING = Interval(None, None)
NATURAL = Interval(0, None)


def range_of(dtype: DType) -> Interval:
    """The values of an integer type; a bool counts as 0 and 1."""
    interval = _RANGES.get(dtype)
    if interval is None:
        interval = _RANGES[dtype] = Interval(int(dtype.minimum), int(dtype.maximum))
    return interval


def _tighter(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    return a if b is None else pick(a, b)


_WIDE = 1 << 62
_RANGES: dict[DType, Interval] = {}


@dataclass(slots=True, eq=False, repr=False)
class Opaque:
    """A subexpression as an atom.

    kind, parts   its structure: an operator and what it is applied to
    expression    how it is written
    moving        it reads memory that may change, so it is equal to itself only at one moment
    interval, modulus, remainder    what is known of its value: it is `remainder` modulo `modulus`

    Those that were found to be equal have one `_class`, so that parts which many share are compared once.
    """

    kind: str
    parts: tuple[Any, ...]
    expression: Expression
    interval: Interval = EVERYTHING
    modulus: int = 1
    remainder: int = 0
    volatile: bool = False
    _hash: int = field(init=False)
    _class: object = field(init=False, default_factory=object)
    _weight: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._hash = hash((self.kind, self.parts))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not Opaque or self._hash != other._hash:
            return False
        if self._class is other._class:
            return True
        if self.kind != other.kind or self.parts != other.parts:
            return False
        self._class = other._class
        return True

    def __hash__(self) -> int:
        return self._hash

    @property
    def weight(self) -> int:
        """The number of its parts, as a tree."""
        if not self._weight:
            self._weight = 1 + sum(map(_weight_of_part, self.parts))
        return self._weight

    def __repr__(self) -> str:
        return f"<{self.kind} {', '.join(map(repr, self.parts))}>"


def _weight_of_part(part: object) -> int:
    if isinstance(part, (Opaque, Affine)):
        return part.weight
    if isinstance(part, (tuple, frozenset)):
        return sum(map(_weight_of_part, part))
    return 1


Atom = Variable | Opaque


@dataclass(slots=True, eq=False, repr=False)
class Affine:
    """An immutable form. `magnitude` bounds |value|, with unbounded atoms counted as 0."""

    constant: int
    terms: dict[Atom, int]
    magnitude: int
    _hash: int | None = field(init=False, default=None)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Affine and self.constant == other.constant and self.terms == other.terms
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.constant, frozenset(self.terms.items())))
        return self._hash

    def __repr__(self) -> str:
        terms = [f"{factor}*{atom!r}" for atom, factor in self.terms.items()]
        return " + ".join([*terms, str(self.constant)])

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def volatile(self) -> bool:
        return any(type(atom) is Opaque and atom.volatile for atom in self.terms)

    @property
    def weight(self) -> int:
        """The number of its parts, as a tree."""
        return 1 + sum([atom.weight if type(atom) is Opaque else 1 for atom in self.terms])

    def coefficient(self, atom: Atom) -> int:
        return self.terms.get(atom, 0)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            if not other:
                return self
            return Affine(self.constant + other, self.terms, self.magnitude + abs(other))
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        return self._plus(other, 1)

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return self + -other
        return self._plus(other, -1)

    def _plus(self, other: Affine, sign: int) -> Affine:
        terms = dict(self.terms)
        for atom, factor in other.terms.items():
            total = terms.get(atom, 0) + sign * factor
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        constant = self.constant + sign * other.constant
        return Affine(constant, terms, self.magnitude + other.magnitude)

    def __neg__(self) -> Affine:
        return self.scaled(-1)

    def scaled(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if not factor:
            return ZERO
        terms = {atom: old * factor for atom, old in self.terms.items()}
        return Affine(self.constant * factor, terms, self.magnitude * abs(factor))

    def quotient(self, divisor: int) -> Affine:
        """The exact quotient; every coefficient has to be a multiple of the divisor."""
        if divisor == 1:
            return self
        terms = {atom: old // divisor for atom, old in self.terms.items()}
        return Affine(self.constant // divisor, terms, self.magnitude)

    def without(self, atom: Atom) -> Affine:
        """The form without this atom's term."""
        terms = dict(self.terms)
        del terms[atom]
        return Affine(self.constant, terms, self.magnitude)

    def replacing(self, atom: Atom, value: Affine) -> Affine:
        return self.without(atom) + value.scaled(self.terms[atom])

    def content(self) -> int:
        """The greatest common divisor of the coefficients, without the constant."""
        return gcd(*self.terms.values())

    def to_expression(self, dtype: DType = i64) -> Expression:
        """The form as an expression: atoms with a common coefficient together, positive terms first."""
        groups: dict[int, list[tuple[Expression, bool]]] = {}
        for atom, factor in self.terms.items():
            expression = atom if type(atom) is Variable else atom.expression  # type: ignore[union-attr]
            if expression.dtype is not dtype:
                expression = Cast(expression, dtype)
            groups.setdefault(abs(factor), []).append((expression, factor < 0))
        plus: list[Expression] = []
        minus: list[Expression] = []
        for factor, members in groups.items():
            added = [expression for expression, negative in members if not negative]
            taken = [expression for expression, negative in members if negative]
            if factor == 1:
                plus += added
                minus += taken
                continue
            target = plus if added else minus
            total = _subtracted(added, taken) if added else balanced_sum(taken)
            target.append(Binary("*", total, Constant(factor, dtype)))
        if self.constant > 0 or not (plus or minus):
            plus.append(Constant(self.constant, dtype))
        elif self.constant < 0:
            if plus:
                minus.append(Constant(-self.constant, dtype))
            else:
                plus.append(Constant(self.constant, dtype))
        if not plus:
            return Unary("-", balanced_sum(minus))
        return _subtracted(plus, minus)


ZERO = Affine(0, {}, 0)
WRAPPED = "wrapped"  # the kind of an atom that is a form reduced to its type's range
_BALANCE_FROM = 8
_WIDEST_PRODUCT = 16


def balanced_sum(terms: Sequence[Expression]) -> Expression:
    """Add from left to right; long sums become a balanced tree, so that none is deep."""
    if len(terms) > _BALANCE_FROM:
        half = len(terms) // 2
        return Binary("+", balanced_sum(terms[:half]), balanced_sum(terms[half:]))
    total = terms[0]
    for term in terms[1:]:
        total = Binary("+", total, term)
    return total


def _subtracted(plus: Sequence[Expression], minus: Sequence[Expression]) -> Expression:
    total = balanced_sum(plus)
    if len(minus) > _BALANCE_FROM:
        return Binary("-", total, balanced_sum(minus))
    for term in minus:
        total = Binary("-", total, term)
    return total


def factors_of(atom: Atom) -> Counter[Atom]:
    """The atoms of a product with their powers; an atom that is no product is its own factor."""
    if type(atom) is Opaque and atom.kind == "*":
        return Counter(dict(atom.parts[0]))
    return Counter([atom])


def is_wide_product(left: Affine, right: Affine) -> bool:
    """Whether multiplying two forms out would produce too many terms."""
    count = len(left.terms) + bool(left.constant)
    return count * (len(right.terms) + bool(right.constant)) > _WIDEST_PRODUCT


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
