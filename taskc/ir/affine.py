"""Linear forms of expressions.

    affine(8 * x + y - y)          8*x
    affine((8 * x + 4) // 4)       2*x + 1
    affine((8 * x + r) % 8)        r            where r is known to lie in [0, 8)

A `SymbolTable` knows what names are bound to, on whatever path: the ranges and strides of loop variables
and the values of Lets. (Conditions are the business of taskc.analysis.facts.) A variable is bound once,
so one dictionary, which only grows, serves a whole kernel, and so do the memo tables.

Forms are exact: an expression whose value may wrap in its type becomes an opaque atom. Arithmetic
in i64 on names without a finite range is taken not to wrap; see taskc.ir.linear. Numbers read
from memory have the range of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from math import gcd, prod
from typing import Any

from taskc.dataclass import dataclass
from taskc.ir import linear
from taskc.ir.arithmetic import BIT_COUNTS
from taskc.ir.linear import (
    EVERYTHING,
    NATURAL,
    WRAPPED,
    ZERO,
    Affine,
    Atom,
    Interval,
    Opaque,
    factors_of,
    is_wide_product,
    range_of,
)
from taskc.ir.nodes import (
    GLOBAL,
    Address,
    Binary,
    Cast,
    Constant,
    Effect,
    Expression,
    Lookup,
    Read,
    Select,
    Tensor,
    Unary,
    Variable,
)
from taskc.ir.rewrite import EFFECT_FIELDS, EXPRESSION_TYPES, walk
from taskc.ir.types import DType, boolean, i64

__all__ = [
    "Affine",
    "Atom",
    "Opaque",
    "Range",
    "SymbolTable",
    "affine",
    "constant_difference",
    "divisible",
    "is_stable",
]

Term = Affine | Opaque

# A chain of names, each using the previous one twice, doubles the size of the definition at each step.
_LARGEST_DEFINITION = 500
_LONGEST_CONDITION = 256  # largest condition that a name is replaced by


@dataclass(frozen=True, slots=True)
class Range:
    """low <= variable <= high, and variable % modulus == remainder; None is unbounded.

    `order` counts bindings: an outer variable has a lower one than variables bound inside.
    """

    low: Affine | None
    high: Affine | None
    interval: Interval
    modulus: int
    remainder: int
    order: int


class SymbolTable:
    """The bindings of names; `bind` and `define` are called where their binders are entered."""

    def __init__(self, cells: Mapping[Tensor, Interval] | None = None) -> None:
        self.cells = cells or {}
        self.worker: Variable | None = None
        self.ranges: dict[Variable, Range] = {}
        self.definitions: dict[Variable, Affine] = {}
        # Definitions of conditions that are short enough to look through; `_sizes` counts their parts, names expanded.
        self.conditions: dict[Variable, Expression] = {}
        self._sizes: dict[Variable, int] = {}
        # Keyed by the expression's identity; the expression is kept so that its id isn't reused.
        self._forms: dict[int, tuple[Expression, Term]] = {}
        self._intervals: dict[int, tuple[Affine, Interval]] = {}
        self._depths: dict[Variable, int] = {}  # depths of defined variables

    # Names.

    def bind(
        self,
        variable: Variable,
        low: Affine | None,
        high: Affine | None,
        first: Affine | None = None,
        step: int = 1,
        most: int | None = None,
    ) -> None:
        """Bind `variable` in [low, high], a multiple of `step` from `first`, and at most `most`."""
        interval = Interval(
            None if low is None else self.interval_of(low).low,
            None if high is None else self.interval_of(high).high,
        )
        if most is not None:
            interval = interval.meet(Interval(None, most))
        if variable.dtype is not i64:
            interval = interval.meet(range_of(variable.dtype))
        modulus, remainder = 1, 0
        if first is not None and step != 1:
            modulus, remainder = self.congruence_of(first)
            modulus = gcd(modulus, step)
            remainder %= modulus
        known = self.ranges.get(variable)
        order = len(self.ranges) if known is None else known.order
        new = Range(low, high, interval, modulus, remainder, order)
        if known is not None and known != new:
            self._forms.clear()
        self.ranges[variable] = new

    def bind_within(self, variable: Variable, interval: Interval) -> None:
        """Bind `variable` to one of these numbers, without a known loop."""
        self.ranges[variable] = Range(None, None, interval, 1, 0, len(self.ranges))

    def define(self, variable: Variable, value: Expression) -> None:
        """Define `variable` as `value`, by its form, unless that depends on memory that may change or is too large."""
        if variable.dtype is boolean:
            size = 0
            for part in walk(value):
                size += self._sizes.get(part, 1) if type(part) is Variable else 1
            self._sizes[variable] = size
            if size <= _LONGEST_CONDITION:
                self.conditions[variable] = value
            return
        if not variable.dtype.is_integer:
            return
        form = self.form(value)
        if form.volatile or form.weight > _LARGEST_DEFINITION:
            interval = self.interval_of(form)
            modulus, remainder = self.congruence_of(form)
            known = self.ranges.get(variable)
            order = len(self.ranges) if known is None else known.order
            self.ranges[variable] = Range(None, None, interval, modulus or 1, remainder, order)
        elif self.definitions.get(variable) != form:
            if variable in self.definitions:
                self._forms.clear()
                self._depths.clear()
            self.definitions[variable] = form

    def depth(self, expression: Expression) -> int:
        """The number of bindings up to the last of the expression's names; the worker counts as the last."""
        deepest = -1
        for part in walk(expression):
            if type(part) is Variable:
                if part is self.worker:
                    return len(self.ranges)
                known = self.ranges.get(part)
                if known is not None:
                    deepest = max(deepest, known.order)
                elif part in self.definitions:
                    deepest = max(deepest, self._depth_of_definition(part))
        return deepest

    def _depth_of_definition(self, variable: Variable) -> int:
        found = self._depths.get(variable)
        if found is None:
            atoms = self.definitions[variable].terms
            parts = [a.expression if isinstance(a, Opaque) else a for a in atoms]
            found = self._depths[variable] = max(map(self.depth, parts), default=-1)
        return found

    # Properties of forms.

    def interval_of_atom(self, atom: Atom) -> Interval:
        if type(atom) is Opaque:
            return atom.interval
        assert type(atom) is Variable
        known = self.ranges.get(atom)
        if known is not None:
            return known.interval
        return EVERYTHING if atom.dtype is i64 else range_of(atom.dtype)

    def interval_of(self, form: Affine) -> Interval:
        terms = form.terms
        if not terms:
            return Interval(form.constant, form.constant)
        cached = self._intervals.get(id(form))
        if cached is not None:
            return cached[1]
        low: int | None = form.constant
        high: int | None = form.constant
        for atom, factor in terms.items():
            below, above = self.interval_of_atom(atom)
            if factor < 0:
                below, above = above, below
            low = None if low is None or below is None else low + factor * below
            high = None if high is None or above is None else high + factor * above
        result = Interval(low, high)
        self._intervals[id(form)] = form, result
        return result

    def congruence_of_atom(self, atom: Atom) -> tuple[int, int]:
        if type(atom) is Opaque:
            return atom.modulus, atom.remainder
        assert type(atom) is Variable
        known = self.ranges.get(atom)
        if known is None or atom.multiple != 1:
            return atom.multiple, 0
        return known.modulus, known.remainder

    def congruence_of(self, form: Affine) -> tuple[int, int]:
        """(m, r): the form is congruent to r modulo m; m is 0 where it is the constant r."""
        modulus, total = 0, form.constant
        for atom, factor in form.terms.items():
            step, remainder = self.congruence_of_atom(atom)
            modulus = gcd(modulus, factor * step)
            total += factor * remainder
            if modulus == 1:
                return 1, 0
        return modulus, total % modulus if modulus else total

    def divides(self, divisor: int, form: Affine) -> bool:
        modulus, remainder = self.congruence_of(form)
        return modulus % divisor == 0 and remainder % divisor == 0

    # Forms of expressions.

    def form(self, expression: Expression) -> Affine:
        """The form of an integer expression."""
        result = self.term(expression)
        return result if type(result) is Affine else self.atom_form(result)  # type: ignore[arg-type]

    def atom_form(self, atom: Atom) -> Affine:
        return Affine(0, {atom: 1}, self._magnitude_of_atom(atom))

    def _magnitude_of_atom(self, atom: Atom) -> int:
        low, high = self.interval_of_atom(atom)
        if low is not None and high is not None:
            return max(abs(low), abs(high))
        magnitude = max(abs(low or 0), abs(high or 0))
        if type(atom) is Opaque and atom.kind == "*":
            factors = factors_of(atom).items()
            return prod(max(1, self._magnitude_of_atom(part)) ** power for part, power in factors)
        if type(atom) is Opaque:
            # A number read from memory may wrap, even in arithmetic with unbounded sizes.
            for part in atom.parts:
                for inner in part if isinstance(part, frozenset) else (part,):
                    if type(inner) is Affine:
                        magnitude = max(magnitude, inner.magnitude)
        return magnitude

    def term(self, expression: Expression) -> Term:
        """A form for an integer expression, else an atom; equal terms have equal values."""
        cached = self._forms.get(id(expression))
        if cached is not None:
            return cached[1]
        result = _CONVERT.get(type(expression), _plain)(self, expression)
        if type(result) is Opaque and expression.dtype.is_integer:
            result = self.atom_form(result)
        self._forms[id(expression)] = expression, result
        return result

    def exact(self, form: Affine, expression: Expression) -> Term:
        """The form, if its value surely fits the expression's type; else an atom."""
        if self.fits(form, expression.dtype):
            return form
        interval = range_of(expression.dtype)
        return Opaque(
            WRAPPED, (form, expression.dtype), expression, interval, volatile=form.volatile
        )

    def fits(self, form: Affine, dtype: DType) -> bool:
        """Whether the form's value surely fits the type."""
        if form.magnitude <= dtype.maximum and dtype.is_signed:
            return True
        return self.interval_of(form).inside(range_of(dtype))

    def product(self, left: Affine, right: Affine, expression: Expression) -> Affine | Opaque:
        """left * right, multiplied out unless the result would be long."""
        if is_wide_product(left, right):
            interval = self.interval_of(left).times(self.interval_of(right))
            parts = frozenset((left, right)), left == right
            return Opaque(
                "wide *", parts, expression, interval, volatile=left.volatile or right.volatile
            )
        total = ZERO
        one = Affine(1, {}, 1)
        left_terms = [*left.terms.items(), *([(None, left.constant)] if left.constant else [])]
        right_terms = [*right.terms.items(), *([(None, right.constant)] if right.constant else [])]
        for a, i in left_terms:
            for b, j in right_terms:
                if a is not None and b is not None:
                    term = self.atom_form(self._product_atom(a, b))
                else:
                    atom = a or b
                    term = one if atom is None else self.atom_form(atom)
                total = total + term.scaled(i * j)
        return total

    def _product_atom(self, left: Atom, right: Atom) -> Atom:
        factors = factors_of(left)
        factors.update(factors_of(right))
        interval, modulus, volatile = Interval(1, 1), 1, False
        expression: Expression | None = None
        for atom, power in factors.items():
            step, remainder = self.congruence_of_atom(atom)
            written: Expression = atom if type(atom) is Variable else atom.expression  # type: ignore[union-attr]
            if written.dtype is not i64:
                written = Cast(written, i64)
            volatile = volatile or (type(atom) is Opaque and atom.volatile)
            for _ in range(power):
                interval = interval.times(self.interval_of_atom(atom))
                modulus *= gcd(step, remainder)
                expression = written if expression is None else Binary("*", expression, written)
        assert expression is not None
        key = frozenset(factors.items())
        return Opaque("*", (key,), expression, interval, modulus, 0, volatile)


# The form or atom of each kind of node.


def _constant(scope: SymbolTable, node: Constant) -> Term:
    value = node.value
    if node.dtype.is_integer:
        return Affine(int(value), {}, abs(int(value)))
    # -0.0 == 0.0 and nan != nan, but the atoms of the two zeros differ, and nan's are equal.
    text = value.hex() if isinstance(value, float) else repr(value)
    return Opaque("constant", (text, node.dtype), node)


def _variable(scope: SymbolTable, node: Variable) -> Term:
    if node.dtype.is_integer:
        return scope.definitions.get(node) or scope.atom_form(node)
    return Opaque("variable", (node,), node)


def _unary(scope: SymbolTable, node: Unary) -> Term:
    operand = scope.term(node.operand)
    if type(operand) is not Affine:
        return Opaque(node.operator, (operand,), node, volatile=operand.volatile)
    if node.operator == "-":
        return scope.exact(-operand, node)
    interval = range_of(node.dtype)
    if node.operator == "abs":
        known = scope.interval_of(operand)
        if known.low is not None and known.low >= 0:
            return operand
        absolute = known.absolute()
        if absolute.high is not None and absolute.high <= int(node.dtype.maximum):
            interval = absolute
    if node.operator in BIT_COUNTS:
        interval = Interval(0, node.dtype.bits)
    if node.operator == "~":  # -x - 1 in two's complement; it would wrap for unsigned numbers
        return scope.exact(-operand - 1, node)
    return Opaque(node.operator, (operand,), node, interval, volatile=operand.volatile)


def _binary(scope: SymbolTable, node: Binary) -> Term:
    left, right = scope.term(node.left), scope.term(node.right)
    operator = node.operator
    if type(left) is not Affine or type(right) is not Affine or node.dtype is boolean:
        volatile = left.volatile or right.volatile
        return Opaque(operator, (left, right), node, volatile=volatile)
    match operator:
        case "+":
            return scope.exact(left + right, node)
        case "-":
            return scope.exact(left - right, node)
        case "*":
            if not right.terms:
                return scope.exact(left.scaled(right.constant), node)
            if not left.terms:
                return scope.exact(right.scaled(left.constant), node)
            if node.dtype is not i64:
                interval = scope.interval_of(left).times(scope.interval_of(right))
                interval = _fitting(interval, node)
                volatile = left.volatile or right.volatile
                return Opaque("*:", (left, right), node, interval, volatile=volatile)
            product = scope.product(left, right, node)
            if type(product) is Opaque:
                product = scope.atom_form(product)
            assert type(product) is Affine
            return scope.exact(product, node)
        case "//" | "%" if not right.terms and right.constant > 0:
            by = linear.floor_divided if operator == "//" else linear.modulo
            return by(scope, left, right.constant, node.dtype, node)
        case "//" if (quotient := linear.by_symbol(scope, left, right)) is not None:
            return quotient
        case ">>" if not right.terms and 0 <= right.constant < node.dtype.bits:
            return linear.floor_divided(scope, left, 1 << right.constant, node.dtype)
        case "<<" if not right.terms and 0 <= right.constant < node.dtype.bits:
            return scope.exact(left.scaled(1 << right.constant), node)
        case "&" if not right.terms and right.constant >= 0:
            if not right.constant & (right.constant + 1):
                return linear.modulo(scope, left, right.constant + 1, node.dtype)
            interval = Interval(0, right.constant)
            return Opaque("&", (left, right), node, interval, volatile=left.volatile)
        case "min" | "max":
            return _extremum(scope, node, left, right)
    interval = range_of(node.dtype)
    if operator in ("//", "%"):
        interval = _fitting(_divided(operator, *map(scope.interval_of, (left, right))), node)
    volatile = left.volatile or right.volatile
    return Opaque(operator, (left, right), node, interval, volatile=volatile)


def _divided(operator: str, left: Interval, right: Interval) -> Interval:
    """The interval of x // y or x % y, which are 0 for y == 0."""
    if operator == "%":
        if right.low is None or right.low < 0:
            return EVERYTHING
        return Interval(0, None if right.high is None else max(right.high - 1, 0))
    if right.low is None or right.low < 0:
        left = left.join(left.scaled(-1))
    return left.join(Interval(0, 0))


def _fitting(interval: Interval, node: Expression) -> Interval:
    allowed = range_of(node.dtype)
    infinite = node.dtype is i64 and None in interval
    return interval if infinite or interval.inside(allowed) else allowed


def _extremum(scope: SymbolTable, node: Binary, left: Affine, right: Affine) -> Term:
    difference_low, difference_high = scope.interval_of(left - right)
    smaller = node.operator == "min"
    if difference_high is not None and difference_high <= 0:
        return left if smaller else right
    if difference_low is not None and difference_low >= 0:
        return right if smaller else left
    a, b = scope.interval_of(left), scope.interval_of(right)
    first, second = scope.congruence_of(left), scope.congruence_of(right)
    return Opaque(
        node.operator,
        (frozenset((left, right)),),
        node,
        a.minimum(b) if smaller else a.maximum(b),
        gcd(*first, *second) or 1,
        0,
        left.volatile or right.volatile,
    )


def _select(scope: SymbolTable, node: Select) -> Term:
    condition = scope.term(node.condition)
    then, otherwise = scope.term(node.then), scope.term(node.otherwise)
    if then == otherwise:
        return then
    parts = (condition, then, otherwise)
    volatile = _any_moving(parts)
    if type(then) is Affine and type(otherwise) is Affine:
        interval = scope.interval_of(then).join(scope.interval_of(otherwise))
        modulus = gcd(*scope.congruence_of(then), *scope.congruence_of(otherwise)) or 1
        return Opaque("select", parts, node, interval, modulus, 0, volatile)
    return Opaque("select", parts, node, volatile=volatile)


def _cast(scope: SymbolTable, node: Cast) -> Term:
    operand = scope.term(node.operand)
    if type(operand) is not Affine:
        interval = EVERYTHING
        if node.dtype.is_integer:
            interval = Interval(0, 1) if node.operand.dtype is boolean else range_of(node.dtype)
        return Opaque("cast", (operand, node.dtype), node, interval, volatile=operand.volatile)
    if not node.dtype.is_integer:
        return Opaque("cast", (operand, node.dtype), node, volatile=operand.volatile)
    return scope.exact(operand, node)


def is_stable(tensor: Tensor) -> bool:
    """Whether nothing writes to the tensor while the kernel runs."""
    return tensor.scope == GLOBAL and tensor.role == "in"


def _read(scope: SymbolTable, node: Read) -> Term:
    parts = tuple(scope.term(index) for index in node.indices)
    volatile = not is_stable(node.tensor) or _any_moving(parts)
    interval = scope.cells.get(node.tensor, _any_value(node.dtype))
    return Opaque("read", (node.tensor, *parts), node, interval, volatile=volatile)


def _address(scope: SymbolTable, node: Address) -> Term:
    parts = tuple(scope.term(index) for index in node.indices)
    return Opaque("address", (node.tensor, *parts), node, NATURAL, volatile=True)


def _lookup(scope: SymbolTable, node: Lookup) -> Term:
    index = scope.term(node.index)
    values = node.table.values
    interval = Interval(int(values.min()), int(values.max())) if values.size else range_of(i64)
    return Opaque("lookup", (node.table, index), node, interval, volatile=index.volatile)


def _plain(scope: SymbolTable, node: Expression) -> Term:
    """An atom for a node without known properties: its kind and its fields."""
    parts: list[Any] = []
    for field in fields(node):
        held = getattr(node, field.name) if field.compare else ()
        many = held if isinstance(held, tuple) else (held,)
        parts += [scope.term(item) if type(item) in EXPRESSION_TYPES else item for item in many]
    volatile = type(node) in EFFECT_FIELDS[Effect.READS] or _any_moving(parts)
    return Opaque(
        type(node).__name__, tuple(parts), node, _any_value(node.dtype), volatile=volatile
    )


def _any_value(dtype: DType) -> Interval:
    return range_of(dtype) if dtype.is_integer else EVERYTHING


def _any_moving(parts: Iterable[object]) -> bool:
    return any(part.volatile for part in parts if isinstance(part, (Affine, Opaque)))


_CONVERT: dict[type, Callable[[SymbolTable, Any], Term]] = {
    Constant: _constant,
    Variable: _variable,
    Unary: _unary,
    Binary: _binary,
    Select: _select,
    Cast: _cast,
    Read: _read,
    Address: _address,
    Lookup: _lookup,
}


def affine(expression: Expression, scope: SymbolTable | None = None) -> Affine:
    """The linear form of an integer expression."""
    return (scope or SymbolTable()).form(expression)


def constant_difference(
    left: Expression, right: Expression, scope: SymbolTable | None = None
) -> int | None:
    """left - right if that is a constant, else None."""
    scope = scope or SymbolTable()
    form = scope.form(left) - scope.form(right)
    return form.constant if form.is_constant else None


def divisible(expression: Expression, divisor: int, scope: SymbolTable | None = None) -> bool:
    """Whether the expression is surely a multiple of the divisor."""
    scope = scope or SymbolTable()
    return scope.divides(divisor, scope.form(expression))
