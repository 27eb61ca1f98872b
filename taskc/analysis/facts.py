"""Facts at a point of a program: range analysis, under the conditions that dominate the point.

    facts = Facts.empty(kernel)         sizes >= 0, worker in [0, workers), block in [0, blocks), processors >= 1
    facts = facts.enter(statement)      inside the body of a For, Grid, Each, Move, ...; after a Let
    facts = facts.assume(condition)     where the condition holds
    facts.prove(row + i < m)            True, False, or None for unknown
    facts.interval(expression)          numeric bounds

`Facts` are immutable: code after a statement, or in another branch, is not affected. They are
cheap to extend, since ranges of names are kept in one `SymbolTable` (a variable is bound once), and only
conditions create new frames. taskc.analysis.prover describes how a condition is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from math import gcd

from taskc.analysis.prover import Known, nonpositive, without_wrapping
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable
from taskc.ir.build import ZERO, index
from taskc.ir.linear import Affine, Atom, Interval, Opaque, factors_of
from taskc.ir.nodes import Binary, Constant, Expression, Statement, Unary, Variable
from taskc.ir.types import boolean

# No target launches more blocks than this.
MOST_BLOCKS = 2**31 - 1

# A comparison of left and right holds where this form of left - right is <= 0.
_NONPOSITIVE: dict[str, Callable[[Affine], Affine]] = {
    "<": lambda difference: difference + 1,
    "<=": lambda difference: difference,
    ">": lambda difference: -difference + 1,
    ">=": lambda difference: -difference,
}
NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


@dataclass(frozen=True, slots=True, eq=False)
class Facts(Known):
    """All facts at a point of a program.

    truths    boolean atoms, and whether they hold
    _proofs   what was asked, and the answers
    _assumed  the facts under further conditions; a chain of branches assumes the first ones again and again
    """

    truths: dict[Opaque, bool] = field(default_factory=dict)
    _proofs: dict[int, tuple[Expression, bool | None]] = field(default_factory=dict)
    _assumed: dict[tuple[int, bool, bool], tuple[Expression, Facts]] = field(default_factory=dict)

    @staticmethod
    def empty(
        kernel: ir.Kernel | None = None, cells: Mapping[ir.Tensor, Interval] | None = None
    ) -> Facts:
        """The facts at the top of a kernel; `cells` are the ranges of some tensors' elements."""
        scope = SymbolTable(cells)
        if kernel is None:
            return Facts(scope)
        natural = Affine(0, {}, 0)
        for size in kernel.dimensions:
            scope.bind(size, natural, None)
        for parameter in kernel.parameters:
            if type(parameter) is Variable and parameter.dtype.is_integer:
                low, high = int(parameter.dtype.minimum), int(parameter.dtype.maximum)
                if parameter not in kernel.dimensions:
                    scope.bind(parameter, _number(low), _number(high))
        scope.bind(kernel.worker, natural, _number(kernel.workers + kernel.helpers - 1))
        scope.worker = kernel.worker
        facts = Facts(scope)
        facts.bind_processors(kernel)
        last = None if kernel.blocks is None else scope.form(kernel.blocks) - 1
        scope.bind(kernel.block, natural, last, most=MOST_BLOCKS)
        # A block runs, so the sizes are such that there are blocks.
        return facts if last is None else facts._with(-last)

    def bind_processors(self, kernel: ir.Kernel) -> None:
        self.scope.bind(kernel.processors, _number(1), _number(ir.MOST_PROCESSORS))

    # Extending.

    def enter(self, statement: Statement) -> Facts:
        """Inside the body of `statement`, at the start of any execution of it; after a Let."""
        match statement:
            case ir.Let():
                self.scope.define(statement.variable, statement.value)
            case ir.For():
                return self._enter_loop(
                    statement.variable, statement.start, statement.stop, statement.step
                )
            case ir.Pipeline():
                return self._enter_loop(statement.variable, ZERO, statement.extent, statement.by)
            case ir.Grid():
                facts = self
                for variable, extent, by in zip(
                    statement.variables, statement.shape, statement.by, strict=True
                ):
                    facts = facts._enter_loop(variable, ZERO, index(extent), by)
                return facts
            case ir.Each() | ir.Move():
                sizes = (
                    statement.mapping.iterated
                    if isinstance(statement, ir.Each)
                    else statement.shape
                )
                for variable, size in zip(statement.variables, sizes, strict=True):
                    self.scope.bind(variable, _number(0), _number(size - 1))
            case ir.While():
                return self.assume(statement.condition)
        return self

    def enter_role(self, role: ir.Role, worker: Variable) -> Facts:
        """Inside a role's body, where the block's worker number is one of the role's."""
        below = Binary("<", worker, Constant(role.first + role.workers, worker.dtype))
        above = Binary(">=", worker, Constant(role.first, worker.dtype))
        return self.assume(Binary("and", above, below))

    def branch(self, condition: Expression) -> tuple[Facts, Facts]:
        """The facts where a condition holds, and where it doesn't."""
        return self.assume(condition), self.assume(condition, holds=False)

    def assume(self, condition: Expression, *, holds: bool = True, lasting: bool = True) -> Facts:
        """The facts where `condition` holds, or doesn't.

        What reads memory that may change is left out, unless `lasting` is False: the facts are then
        for expressions evaluated at this very moment.
        """
        key = id(condition), holds, lasting
        known = self._assumed.get(key)
        if known is None:
            known = self._assumed[key] = condition, self._assuming(condition, holds, lasting)
        return known[1]

    def _assuming(self, condition: Expression, holds: bool, lasting: bool) -> Facts:
        match condition:
            case Unary(operator="not"):
                return self.assume(condition.operand, holds=not holds, lasting=lasting)
            case Binary(operator="and" | "or"):
                if (condition.operator == "and") == holds:
                    facts = self.assume(condition.left, holds=holds, lasting=lasting)
                    return facts.assume(condition.right, holds=holds, lasting=lasting)
                # One of the two holds (or doesn't): the other one may tell which.
                if self.prove(condition.left) is (not holds):
                    return self.assume(condition.right, holds=holds, lasting=lasting)
                if self.prove(condition.right) is (not holds):
                    return self.assume(condition.left, holds=holds, lasting=lasting)
            case Binary() if condition.operator in NEGATED and condition.left.dtype.is_integer:
                operator = condition.operator if holds else NEGATED[condition.operator]
                return self._assume_comparison(operator, condition, lasting)
            case _:
                pass  # nothing is known besides that it holds
        if condition.dtype is not boolean or type(condition) is Constant:
            return self
        term = self.scope.term(condition)
        if not isinstance(term, Opaque) or (lasting and term.volatile) or term in self.truths:
            return self
        facts = replace(self, truths={**self.truths, term: holds}, _proofs={}, _assumed={})
        named = self.scope.conditions.get(condition) if type(condition) is Variable else None
        return facts if named is None else facts._assume_named(named, holds)

    def _assume_named(self, condition: Expression, holds: bool) -> Facts:
        """The facts where a named condition held, or didn't, when it was evaluated; memory may have changed since."""
        if not self.scope.term(condition).volatile:
            return self.assume(condition, holds=holds)
        match condition:
            case Unary(operator="not"):
                return self._assume_named(condition.operand, not holds)
            case Binary(operator="and" | "or") if (condition.operator == "and") == holds:
                facts = self._assume_named(condition.left, holds)
                return facts._assume_named(condition.right, holds)
        return self

    def _assume_comparison(self, operator: str, condition: Binary, lasting: bool) -> Facts:
        form = self.scope.form(condition.left) - self.scope.form(condition.right)
        if not form.terms or (lasting and form.volatile):
            return self
        if operator in _NONPOSITIVE:
            return self._with(_NONPOSITIVE[operator](form))
        if operator == "==":
            return self._with(form)._with(-form)._with_modulus(form)
        key = _equality(form)
        facts = replace(self, truths={**self.truths, key: False}, _proofs={}, _assumed={})
        # x >= 0 and x != 0 is x > 0, which is stronger.
        low, high = facts.interval_of(form)
        if low == 0:
            return facts._with(-form + 1)
        return facts._with(form + 1) if high == 0 else facts

    def _with(self, form: Affine) -> Facts:
        """The facts with form <= 0 added."""
        facts = self._with_exactly(form)
        exact = without_wrapping(facts, form)
        return facts if exact is None else facts._with_exactly(exact)

    def _with_exactly(self, form: Affine) -> Facts:
        if not form.terms:
            return self
        intervals = self.intervals
        if len(form.terms) == 1:
            ((atom, factor),) = form.terms.items()
            bound = (
                Interval(None, -form.constant // factor)
                if factor > 0
                else Interval(-(form.constant // factor), None)
            )
            known = self.interval_of_atom(atom)
            tighter = known.meet(bound)
            if tighter == known:
                return self
            intervals = {**intervals, atom: tighter}
        facts = replace(
            self,
            inequalities=(*self.inequalities, form),
            intervals=intervals,
            _proofs={},
            _assumed={},
        )
        if len(form.terms) == 1 and factor < 0 and form.constant > 0:
            facts = facts._with_positive_factors(atom)
        for atom, factor in form.terms.items():
            # x < min(a, b) is stronger than x < a and x < b, but these are easier to use.
            if type(atom) is Opaque and atom.kind == ("min" if factor < 0 else "max"):
                for option in atom.parts[0]:
                    facts = facts._with(form.replacing(atom, option))
        return facts

    def _with_positive_factors(self, product: Atom) -> Facts:
        """The facts with product >= 1 added: if no factor is negative, each is >= 1."""
        factors = factors_of(product)
        facts = self
        if len(factors) > 1 and all(self._is_natural(a) for a in factors):
            for atom in factors:
                facts = facts._with(Affine(1, {atom: -1}, 1))
        return facts

    def _is_natural(self, atom: Atom) -> bool:
        low = self.interval_of_atom(atom).low
        return low is not None and low >= 0

    def _with_modulus(self, form: Affine) -> Facts:
        """The facts with form == 0 added: if it is x % n == 0, x is a multiple of n."""
        if len(form.terms) == 1 and not form.constant:
            (atom,) = form.terms
            if type(atom) is Opaque and atom.kind == "%" and isinstance(atom.parts[1], int):
                inner, n = atom.parts
                if len(inner.terms) == 1 and not inner.constant:
                    ((name, factor),) = inner.terms.items()
                    known = self.moduli.get(name, 1)
                    step = n // gcd(n, factor)
                    merged = known * step // gcd(known, step)
                    return replace(
                        self,
                        moduli={**self.moduli, name: merged},
                        _proofs={},
                        _assumed={},
                    )
        return self

    def _enter_loop(
        self, variable: Variable, start: Expression, stop: Expression, step: int
    ) -> Facts:
        first, end = self.scope.form(start), self.scope.form(stop)
        distance = end - first if step > 0 else first - end
        stride = abs(step)
        if distance.is_constant:
            span = max(distance.constant - 1, -1) // stride * stride
            last = first + (span if step > 0 else -span)
        else:
            modulus, remainder = self.congruence_of(distance)
            edge = stride if modulus % stride == 0 and remainder % stride == 0 else 1
            last = end - edge if step > 0 else end + edge
        low, high = (first, last) if step > 0 else (last, first)
        self.scope.bind(variable, low, high, first, stride)
        if distance.is_constant or distance.volatile:
            return self
        return self._with(-distance + 1)

    # Queries.

    def affine(self, expression: Expression) -> Affine:
        """The linear form of an expression; Lets are expanded."""
        return self.scope.form(expression)

    def constant_difference(self, left: Expression, right: Expression) -> int | None:
        """left - right if it is constant."""
        form = self.scope.form(left) - self.scope.form(right)
        return form.constant if form.is_constant else None

    def congruence(self, expression: Expression) -> tuple[int, int]:
        """(m, r): the value is congruent to r modulo m; m is 0 where it is the constant r."""
        return self.congruence_of(self.scope.form(expression))

    def divisible(self, expression: Expression, divisor: int) -> bool:
        modulus, remainder = self.congruence(expression)
        return modulus % divisor == 0 and remainder % divisor == 0

    def interval(self, expression: Expression) -> Interval:
        """Numeric bounds of an integer expression."""
        form = self.scope.form(expression)
        return self.interval_of(without_wrapping(self, form) or form)

    def nonpositive(self, form: Affine) -> bool:
        """Whether form <= 0 surely holds."""
        return nonpositive(self, form)

    def prove(self, condition: Expression) -> bool | None:
        """True or False if the condition surely does or doesn't hold here, else None."""
        if type(condition) is Constant:
            return bool(condition.value)
        cached = self._proofs.get(id(condition))
        if cached is None:
            cached = self._proofs[id(condition)] = condition, self._prove(condition)
        return cached[1]

    def _prove(self, condition: Expression) -> bool | None:
        match condition:
            case Unary(operator="not"):
                inner = self.prove(condition.operand)
                return None if inner is None else not inner
            case Binary(operator="and" | "or"):
                decisive = condition.operator == "or"
                left = self.prove(condition.left)
                if left is decisive:
                    return decisive
                # The right operand counts only if the left one didn't decide.
                assuming_left = self.assume(condition.left, holds=not decisive, lasting=False)
                right = assuming_left.prove(condition.right)
                if right is decisive:
                    # Then the whole is decided whichever way the left one goes.
                    return decisive
                return right if left is not None and right is not None else None
            case Binary() if condition.operator in NEGATED and condition.left.dtype.is_integer:
                result = self._compare(condition)
                if result is not None:
                    return result
            case ir.Select():
                chosen = self.prove(condition.condition)
                if chosen is not None:
                    return self.prove(condition.then if chosen else condition.otherwise)
                where = self.assume(condition.condition, lasting=False).prove(condition.then)
                other = self.assume(condition.condition, holds=False, lasting=False)
                return where if where is other.prove(condition.otherwise) else None
            case Variable() if condition in self.scope.conditions:
                named = self.scope.conditions[condition]
                result = None if self.scope.term(named).volatile else self.prove(named)
                if result is not None:
                    return result
            case _:
                pass  # the condition itself may have been assumed
        if not self.truths:
            return None
        term = self.scope.term(condition)
        return self.truths.get(term) if type(term) is Opaque else None

    def _compare(self, condition: Binary) -> bool | None:
        form = self.scope.form(condition.left) - self.scope.form(condition.right)
        if condition.operator in _NONPOSITIVE:
            return self._decide(_NONPOSITIVE[condition.operator](form))
        equal = self._prove_zero(form)
        return equal if equal is None or condition.operator == "==" else not equal

    def _decide(self, form: Affine) -> bool | None:
        """Whether form <= 0; None if unknown."""
        if self.nonpositive(form):
            return True
        return False if self.nonpositive(-form + 1) else None

    def _prove_zero(self, form: Affine) -> bool | None:
        if form.is_constant:
            return form.constant == 0
        if self.congruence_of(form)[1] or self.truths.get(_equality(form)) is False:
            return False
        if self.nonpositive(form + 1) or self.nonpositive(-form + 1):
            return False
        if self._is_between_multiples(form):
            return False
        return True if self.nonpositive(form) and self.nonpositive(-form) else None

    def _is_between_multiples(self, form: Affine) -> bool:
        """Whether the form is a multiple of some n plus a rest strictly between multiples: `16 * q + w - v` where 0 < w
        - v < 16.
        """
        moduli = {
            atom: factor * self.congruence_of(self.scope.atom_form(atom))[0]
            for atom, factor in form.terms.items()
        }
        for n in {abs(modulus) for modulus in moduli.values()} - {0, 1}:
            remaining = form
            for atom, modulus in moduli.items():
                if modulus % n == 0:
                    remainder = self.congruence_of(self.scope.atom_form(atom))[1]
                    remaining = remaining.without(atom) + form.terms[atom] * remainder
            for side in (remaining, -remaining):
                if self.nonpositive(-side + 1) and self.nonpositive(side - (n - 1)):
                    return True
        return False


def _number(value: int) -> Affine:
    return Affine(value, {}, abs(value))


def _equality(form: Affine) -> Opaque:
    """The atom for form == 0, the same one for -form."""
    flipped = -form
    return Opaque("== 0", (frozenset((form, flipped)),), ir.Constant(False, boolean))
