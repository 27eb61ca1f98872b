"""Simplification of expressions: constant folding, algebra, decided conditions, normalized sums.

One traversal from the leaves up. A node that a rule rewrites is visited again, with its new parts
only. Index arithmetic is normalized as a whole, at the root of a sum: its linear form is used
if that is cheaper.
"""

from __future__ import annotations

from typing import Any

from taskc.analysis.facts import NEGATED, Facts
from taskc.ir import arithmetic
from taskc.ir.linear import Affine, Opaque, range_of
from taskc.ir.nodes import (
    Address,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expression,
    Fused,
    Lookup,
    Read,
    Select,
    Unary,
    Variable,
)
from taskc.ir.rewrite import expressions, map_expressions, walk
from taskc.ir.types import DType, boolean, i32, i64
from taskc.passes.simplify_rules import candidates

TRUE, FALSE = Constant(True, boolean), Constant(False, boolean)
_LEAVES = (Constant, Variable)


class ExpressionSimplifier:
    """Simplifies expressions; `values` replaces variables, and is filled by the traversal of statements."""

    def __init__(self) -> None:
        self.values: dict[Variable, Expression] = {}
        self._memo: dict[int, tuple[Expression, Expression]] = {}
        self._memo_of: Facts | None = None

    def __call__(self, node: Expression, facts: Facts) -> Expression:
        """A whole expression: an index, a value or a condition."""
        kind = type(node)
        if kind is Constant:
            return node
        if kind is Variable:
            return self.values.get(node, node)  # type: ignore[arg-type]
        if self._memo_of is not facts:
            self._memo_of, self._memo = facts, {}
        known = self._memo.get(id(node))
        if known is not None:
            return known[1]
        new = self._visit(node, facts)
        if new.dtype in (i64, i32):
            new = normalized(new, facts)
        if self._memo_of is not facts:
            self._memo_of, self._memo = facts, {}
        self._memo[id(node)] = node, new
        return new

    def _visit(self, node: Expression, facts: Facts) -> Expression:
        """The node simplified; a sum is not normalized yet."""
        match node:
            case Constant():
                return node
            case Variable():
                return self.values.get(node, node)
            case Binary():
                if node.operator in ("and", "or"):
                    return self._connective(node, facts)
                part = self._visit if node.operator in ("+", "-", "*") else self
                left, right = part(node.left, facts), part(node.right, facts)
                if left is not node.left or right is not node.right:
                    node = Binary(node.operator, left, right, loc=node.loc)
                return self._made(node, facts)
            case Unary():
                part = self._visit if node.operator == "-" else self
                operand = part(node.operand, facts)
                if operand is not node.operand:
                    node = Unary(node.operator, operand, loc=node.loc)
                return self._made(node, facts)
            case Select():
                return self._select(node, facts)
        new = map_expressions(node, lambda part: self(part, facts))
        match new:
            case Cast():
                return simplified_cast(new)
            case Bitcast():
                return _simplified_bitcast(new)
            case Fused():
                return self._made(new, facts)
            case Lookup(table=table, index=Constant(value=place)) if 0 <= place < table.values.size:
                return Constant(int(table.values[int(place)]), i64)
        return new

    def _connective(self, node: Binary, facts: Facts) -> Expression:
        left = self(node.left, facts)
        if type(left) is Constant:
            right = self(node.right, facts)
        else:
            holds = node.operator == "and"
            right = self(node.right, facts.assume(left, holds=holds, lasting=False))
        if left is not node.left or right is not node.right:
            node = Binary(node.operator, left, right, loc=node.loc)
        return self._made(node, facts)

    def _select(self, node: Select, facts: Facts) -> Expression:
        condition = self(node.condition, facts)
        if type(condition) is Constant:
            chosen = self(node.then if condition.value else node.otherwise, facts)
            return self._made(Select(condition, chosen, chosen), facts)
        then = self(node.then, facts.assume(condition, lasting=False))
        otherwise = self(node.otherwise, facts.assume(condition, holds=False, lasting=False))
        if not (condition is node.condition and then is node.then and otherwise is node.otherwise):
            node = Select(condition, then, otherwise, loc=node.loc)
        return self._made(node, facts)

    def _made(self, node: Expression, facts: Facts) -> Expression:
        """A node whose operands are simplified already."""
        folded = fold(node)
        if folded is not None:
            return folded
        if type(node) is Binary and node.operator in NEGATED and node.left.dtype in (i64, i32):
            return self._comparison(node, facts)
        new = self._by_rule(node, facts)
        if new is not node or type(node) is not Binary or node.operator not in ("min", "max"):
            return new
        if node.dtype not in (i64, i32):
            return node
        form = facts.affine(node)
        if form.is_constant:
            return Constant(form.constant, node.dtype)
        smaller = facts.prove(Binary("<=", node.left, node.right))
        if smaller is None:
            return node
        return node.left if smaller == (node.operator == "min") else node.right

    def _comparison(self, node: Binary, facts: Facts) -> Expression:
        new = self._by_rule(node, facts)
        if new is not node:
            return new
        answer = facts.prove(node)
        if answer is not None:
            return TRUE if answer else FALSE
        return _reduced(node, facts)

    def _by_rule(self, node: Expression, facts: Facts) -> Expression:
        match node:
            case Binary():
                matching_rules = candidates(
                    Binary, node.operator, (type(node.left), type(node.right))
                )
            case Unary():
                matching_rules = candidates(Unary, node.operator, (type(node.operand),))
            case Select():
                kinds = type(node.condition), type(node.then), type(node.otherwise)
                matching_rules = candidates(Select, "", kinds)
            case Fused():
                kinds = type(node.left), type(node.right), type(node.addend)
                matching_rules = candidates(Fused, "", kinds)
            case _:
                return node
        for rule in matching_rules:
            new = rule.apply(node, lambda made: self._made(made, facts))
            if new is not None:
                return new
        return node


# --- folding ---------------------------------------------------------------------------------


def fold(node: Expression) -> Expression | None:
    """The value of an operator on constants; None if it isn't folded."""
    match node:
        case Binary(left=Constant() as left, right=Constant() as right):
            if node.operator in ("//", "%") and right.value == 0 and right.dtype.is_integer:
                return None  # undefined; the simulator reports it
            if node.operator in arithmetic.MATH_FUNCTIONS:
                return None
            return _value(
                arithmetic.binary(node.operator, left.value, right.value, left.dtype), node.dtype
            )
        case Unary(operand=Constant() as operand):
            if node.operator in arithmetic.MATH_FUNCTIONS:
                return None
            return _value(arithmetic.unary(node.operator, operand.value, operand.dtype), node.dtype)
        case Fused(left=Constant() as a, right=Constant() as b, addend=Constant() as c):
            if node.dtype.is_float:
                return _value(arithmetic.fma(a.value, b.value, c.value, node.dtype), node.dtype)
    return None


def _value(result: Any, dtype: DType) -> Expression | None:
    value = result.item()
    if value != value:
        return None  # a NaN's bits depend on the machine
    return Constant(value if dtype.is_float or dtype is boolean else int(value), dtype)


def simplified_cast(node: Cast) -> Expression:
    """Simplify a cast of a constant, to the same type, or of a lossless cast."""
    operand = node.operand
    if operand.dtype is node.dtype:
        return operand
    if type(operand) is Constant:
        result = arithmetic.convert(
            arithmetic.as_storage(operand.value, operand.dtype), operand.dtype, node.dtype
        )
        return _value(result, node.dtype) or node
    if type(operand) is Cast and operand.dtype.is_integer and node.dtype.is_integer:
        inner = operand.operand
        if inner.dtype.is_integer and (
            range_of(inner.dtype).inside(range_of(operand.dtype))
            or node.dtype.bits <= operand.dtype.bits
        ):
            # The inner cast keeps the value, or at least all the bits that the outer one keeps.
            return simplified_cast(Cast(inner, node.dtype, loc=node.loc))
    return node


def _simplified_bitcast(node: Bitcast) -> Expression:
    """Simplify a bitcast of a constant, or of another bitcast: x.bitcast(i32).bitcast(f32) -> x"""
    operand = node.operand
    if type(operand) is Constant:
        source, target = operand.dtype, node.dtype
        return _value(arithmetic.bitcast(operand.value, source, target), target) or node
    if type(operand) is not Bitcast:
        return node
    inner = operand.operand
    if inner.dtype is node.dtype:
        return inner
    is_float = inner.dtype.is_float or node.dtype.is_float
    return (Bitcast if is_float else Cast)(inner, node.dtype, loc=node.loc)


# --- index arithmetic ------------------------------------------------------------------------


def normalized(node: Expression, facts: Facts) -> Expression:
    """The linear form of an integer expression as an expression, if that is cheaper or divides less."""
    if type(node) is not Binary and type(node) is not Unary:
        return node
    if type(node) is Binary and node.operator in ("+", "-", "*"):
        small = type(node.left) in _LEAVES and type(node.right) in _LEAVES
        if small:
            return node
    form = facts.affine(node)
    dtype = node.dtype
    if form.is_constant:
        return Constant(form.constant, dtype)
    recombined = _recombined(form)
    written = _named(recombined, node, facts).to_expression(dtype)
    if recombined is not form or cost(written) < cost(node):
        return written
    return written if _divides_later(node, facts) > _divides_later(written, facts) else node


def _divides_later(node: Expression, facts: Facts) -> int:
    """The depth at which the operands of all divisions by constants are known: they move out of all inner loops.

    (col + p + worker) // 48  ->  col // 48 + p // 48    for multiples of 48, and worker < 48
    """
    latest = -1
    for part in walk(node):
        if type(part) is Binary and part.operator in ("//", "%") and type(part.right) is Constant:
            latest = max(latest, facts.scope.depth(part.left))
    return latest


def _named(form: Affine, node: Expression, facts: Facts) -> Affine:
    """Replace multiples of a definition by its name: with col = 64 * (block // 3), 192 * (block // 3)  ->  3 * col."""
    for variable in dict.fromkeys(part for part in walk(node) if type(part) is Variable):
        definition = facts.scope.definitions.get(variable)
        if definition is None or definition.constant or len(definition.terms) != 1:
            continue
        ((atom, factor),) = definition.terms.items()
        count = form.terms.get(atom, 0)
        if count and count % factor == 0 and type(atom) is not Variable:
            named = Affine(0, {variable: count // factor}, form.magnitude)
            form = form.without(atom) + named
    return form


def _recombined(form: Affine) -> Affine:
    """n*k*(x // n) + k*(x % n)  ->  k*x, where x // n for x = y // m is y // (m*n)."""
    while True:
        quotients = [atom for atom in form.terms if getattr(atom, "kind", "") == "//"]
        remainders = (
            [atom for atom in form.terms if getattr(atom, "kind", "") == "%"] if quotients else []
        )
        for atom in remainders:
            inner, n = atom.parts  # type: ignore[union-attr]
            if not isinstance(n, int):
                continue
            factor, parts = form.terms[atom], _parts_of_quotient(inner, n)
            quotient = next((q for q in quotients if q.parts == parts), None)  # type: ignore[union-attr]
            if quotient is not None and form.coefficient(quotient) == n * factor:
                form = form.without(atom).without(quotient) + inner.scaled(factor)
                break
        else:
            return form


def _parts_of_quotient(x: Affine, n: int) -> tuple[Affine, int]:
    """x and n with the same x // n, and n as large as possible."""
    if len(x.terms) == 1 and not x.constant:
        ((atom, factor),) = x.terms.items()
        if factor == 1 and type(atom) is Opaque and atom.kind == "//":
            inner, m = atom.parts
            if isinstance(m, int):
                return inner, m * n
    return x, n


def _reduced(node: Binary, facts: Facts) -> Expression:
    """A comparison with equal terms cancelled and common factors divided out, if that is smaller."""
    form = facts.affine(node.left) - facts.affine(node.right)
    if form.is_constant:
        return node
    dtype = node.left.dtype
    operator = node.operator
    common = form.content()
    if operator in ("<", ">="):
        constant = form.constant // common  # x < -c  is  x < ceil(-c)
    elif form.constant % common and operator in ("==", "!="):
        return FALSE if operator == "==" else TRUE
    else:
        constant = -(-form.constant // common)
    left = {atom: factor // common for atom, factor in form.terms.items() if factor > 0}
    right = {atom: -factor // common for atom, factor in form.terms.items() if factor < 0}
    if not right:
        on_left, on_right = 0, -constant
    elif not left:
        on_left, on_right = constant, 0
    else:
        on_left, on_right = max(constant, 0), max(-constant, 0)
    left_side = Affine(on_left, left, form.magnitude)
    right_side = Affine(on_right, right, form.magnitude)
    if not (facts.scope.fits(left_side, dtype) and facts.scope.fits(right_side, dtype)):
        return node
    new = Binary(
        operator, left_side.to_expression(dtype), right_side.to_expression(dtype), loc=node.loc
    )
    return new if cost(new) < cost(node) else node


# A shift or a mask is one instruction, but linear forms can be hoisted, vectorized, or made addresses.
_DIVISION, _BY_CONSTANT, _NOT_LINEAR = 20, 8, 3
_COSTS = {Unary: 4, Cast: 4, Bitcast: 4, Lookup: 20, Read: 20, Address: 20}  # 8 for others


def cost(node: Expression) -> int:
    """About the number of instructions, times 4; a leaf counts 1, so that fewer are better."""
    total = 0
    stack = [node]
    while stack:
        current = stack.pop()
        match current:
            case Constant() | Variable():
                total += 1
            case Binary():
                total += 4
                right = current.right
                if current.operator in ("//", "%"):
                    if type(right) is not Constant:
                        total += 4 * _DIVISION
                    elif right.value <= 0 or right.value & (right.value - 1):  # type: ignore[operator]
                        total += 4 * _BY_CONSTANT
                    else:
                        total += 4 * _NOT_LINEAR
                elif current.operator == "*" and type(right) is not Constant:
                    total += 4
                stack += (current.left, right)
            case _:
                total += _COSTS.get(type(current), 8)
                stack += expressions(current)
    return total
