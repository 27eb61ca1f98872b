"""What each expression node is as a linear form or an atom: the functions behind `Scope.term`."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING

from taskc.ir import divisions
from taskc.ir.interval import EVERYTHING, NATURAL, Interval, range_of
from taskc.ir.linear import Affine, Opaque
from taskc.ir.nodes import (
    GLOBAL,
    Address,
    Binary,
    Cast,
    Constant,
    Expression,
    Fused,
    Inline,
    Lookup,
    Read,
    Select,
    Tensor,
    Unary,
    Variable,
)
from taskc.ir.types import boolean, i64

if TYPE_CHECKING:
    from taskc.ir.affine import Scope

Term = Affine | Opaque


def _constant(scope: Scope, node: Constant) -> Term:
    value = node.value
    if node.dtype.is_integer:
        return Affine(int(value), {}, abs(int(value)))
    # -0.0 == 0.0 and nan != nan, but the atoms of the two zeros differ, and nan's are equal.
    text = value.hex() if isinstance(value, float) else repr(value)
    return Opaque("constant", (text, node.dtype), node)


def _variable(scope: Scope, node: Variable) -> Term:
    if node.dtype.is_integer:
        return scope.definitions.get(node) or scope.atom_form(node)
    return Opaque("variable", (node,), node)


def _unary(scope: Scope, node: Unary) -> Term:
    operand = scope.term(node.operand)
    if type(operand) is not Affine:
        return Opaque(node.operator, (operand,), node, moving=operand.moving)
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
    if node.operator == "~":  # -x - 1 in two's complement; of unsigned numbers it would wrap
        return scope.exact(-operand - 1, node)
    return Opaque(node.operator, (operand,), node, interval, moving=operand.moving)


def _binary(scope: Scope, node: Binary) -> Term:
    left, right = scope.term(node.left), scope.term(node.right)
    operator = node.operator
    if type(left) is not Affine or type(right) is not Affine or node.dtype is boolean:
        moving = left.moving or right.moving
        return Opaque(operator, (left, right), node, moving=moving)
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
                moving = left.moving or right.moving
                return Opaque("*:", (left, right), node, interval, moving=moving)
            product = scope.product(left, right, node)
            if type(product) is Opaque:
                product = scope.atom_form(product)
            assert type(product) is Affine
            return scope.exact(product, node)
        case "//" | "%" if not right.terms and right.constant > 0:
            by = divisions.floor_divided if operator == "//" else divisions.modulo
            return by(scope, left, right.constant, node.dtype, node)
        case "//" if (quotient := divisions.by_symbol(scope, left, right)) is not None:
            return quotient
        case ">>" if not right.terms and 0 <= right.constant < node.dtype.bits:
            return divisions.floor_divided(scope, left, 1 << right.constant, node.dtype)
        case "<<" if not right.terms and 0 <= right.constant < node.dtype.bits:
            return scope.exact(left.scaled(1 << right.constant), node)
        case "&" if not right.terms and right.constant >= 0:
            if not right.constant & (right.constant + 1):
                return divisions.modulo(scope, left, right.constant + 1, node.dtype)
            interval = Interval(0, right.constant)
            return Opaque("&", (left, right), node, interval, moving=left.moving)
        case "min" | "max":
            return _extremum(scope, node, left, right)
    interval = range_of(node.dtype)
    if operator in ("//", "%"):
        interval = _fitting(_divided(operator, *map(scope.interval_of, (left, right))), node)
    moving = left.moving or right.moving
    return Opaque(operator, (left, right), node, interval, moving=moving)


def _divided(operator: str, left: Interval, right: Interval) -> Interval:
    """Of x // y or x % y, which are 0 for y == 0."""
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


def _extremum(scope: Scope, node: Binary, left: Affine, right: Affine) -> Term:
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
        left.moving or right.moving,
    )


def _fused(scope: Scope, node: Fused) -> Term:
    parts = tuple(scope.term(part) for part in (node.left, node.right, node.addend))
    interval = range_of(node.dtype) if node.dtype.is_integer else EVERYTHING
    return Opaque("fused", parts, node, interval, moving=any_moving(parts))


def _select(scope: Scope, node: Select) -> Term:
    condition = scope.term(node.condition)
    then, otherwise = scope.term(node.then), scope.term(node.otherwise)
    if then == otherwise:
        return then
    parts = (condition, then, otherwise)
    moving = any_moving(parts)
    if type(then) is Affine and type(otherwise) is Affine:
        interval = scope.interval_of(then).join(scope.interval_of(otherwise))
        modulus = gcd(*scope.congruence_of(then), *scope.congruence_of(otherwise)) or 1
        return Opaque("select", parts, node, interval, modulus, 0, moving)
    return Opaque("select", parts, node, moving=moving)


def _cast(scope: Scope, node: Cast) -> Term:
    operand = scope.term(node.operand)
    if type(operand) is not Affine:
        interval = EVERYTHING
        if node.dtype.is_integer:
            interval = Interval(0, 1) if node.operand.dtype is boolean else range_of(node.dtype)
        return Opaque("cast", (operand, node.dtype), node, interval, moving=operand.moving)
    if not node.dtype.is_integer:
        return Opaque("cast", (operand, node.dtype), node, moving=operand.moving)
    return scope.exact(operand, node)


def is_stable(tensor: Tensor) -> bool:
    """Nothing writes to it while the kernel runs."""
    return tensor.scope == GLOBAL and tensor.role == "in"


def _read(scope: Scope, node: Read) -> Term:
    parts = tuple(scope.term(index) for index in node.indices)
    moving = not is_stable(node.tensor) or any_moving(parts)
    interval = scope.cells.get(node.tensor)
    if interval is None:
        interval = range_of(node.dtype) if node.dtype.is_integer else EVERYTHING
    return Opaque("read", (node.tensor, *parts), node, interval, moving=moving)


def _address(scope: Scope, node: Address) -> Term:
    parts = tuple(scope.term(index) for index in node.indices)
    return Opaque("address", (node.tensor, *parts), node, NATURAL, moving=True)


def _lookup(scope: Scope, node: Lookup) -> Term:
    index = scope.term(node.index)
    values = node.table.values
    interval = Interval(int(values.min()), int(values.max())) if values.size else range_of(i64)
    return Opaque("lookup", (node.table, index), node, interval, moving=index.moving)


def _inline(scope: Scope, node: Inline) -> Term:
    parts = tuple(scope.term(operand) for operand in node.operands)
    interval = range_of(node.dtype) if node.dtype.is_integer else EVERYTHING
    return Opaque("inline", (node.snippet, *parts), node, interval, moving=any_moving(parts))


def any_moving(parts: tuple[Term, ...]) -> bool:
    return any(part.moving for part in parts)


CONVERT: dict[type, Callable[[Scope, Expression], Term]] = {
    Constant: _constant,  # type: ignore[dict-item]
    Variable: _variable,  # type: ignore[dict-item]
    Unary: _unary,  # type: ignore[dict-item]
    Binary: _binary,  # type: ignore[dict-item]
    Fused: _fused,  # type: ignore[dict-item]
    Select: _select,  # type: ignore[dict-item]
    Cast: _cast,  # type: ignore[dict-item]
    Read: _read,  # type: ignore[dict-item]
    Address: _address,  # type: ignore[dict-item]
    Lookup: _lookup,  # type: ignore[dict-item]
    Inline: _inline,  # type: ignore[dict-item]
}
