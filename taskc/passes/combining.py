"""The application of a combine function, or an operator, to two tuples of elements.

    combine larger(a, i, b, j) = let first = a >= b, select(first, a, b), select(first, i, j)
    larger of (x[k], k) and (best[0], place[0])
->
    let a = x[k]
    let b = best[0]
    let first = a >= b
    best[0] = select(first, a, b)
    place[0] = select(first, k, place[0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Combine, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import substitute


def combined(
    operator: str | Combine, left: Sequence[Expression], right: Sequence[Expression], loc: Location
) -> tuple[list[Statement], list[Expression]]:
    """The statements before the values, and the values."""
    if isinstance(operator, str):
        pairs = zip(left, right, strict=True)
        return [], [ir.Binary(operator, a, b, loc=loc) for a, b in pairs]
    statements: list[Statement] = []
    bindings: dict[Variable, Expression] = {}

    def name(variable: Variable, value: Expression) -> None:
        if isinstance(value, ir.Variable | ir.Constant):
            bindings[variable] = value
            return
        bindings[variable] = fresh = replace(variable)
        statements.append(ir.Let(fresh, value, loc=loc))

    for variable, value in zip((*operator.left, *operator.right), (*left, *right), strict=True):
        name(variable, value)
    for let in operator.lets:
        name(let.variable, substitute(let.value, bindings))
    return statements, [substitute(value, bindings) for value in operator.values]


def let(name: str, value: Expression, loc: Location) -> tuple[Statement, Variable]:
    variable = Variable(name, value.dtype, loc=loc)
    return ir.Let(variable, value, loc=loc), variable


def fold_into(
    operator: str | Combine,
    targets: Sequence[Tensor],
    place: tuple[Expression, ...],
    left: Sequence[Expression],
    right: Sequence[Expression],
    loc: Location,
) -> Statement:
    """Store at `place` the fold of left with right."""
    statements, values = combined(operator, left, right, loc)
    return stored(statements, targets, place, values, loc)


def stored(
    before: Sequence[Statement],
    targets: Sequence[Tensor],
    place: tuple[Expression, ...],
    values: Sequence[Expression],
    loc: Location,
) -> Statement:
    """Store several values. All are evaluated before the first store, as they may read the other targets."""
    statements = list(before)
    if len(values) > 1:
        named = [let(t.name, value, loc) for t, value in zip(targets, values, strict=True)]
        statements += [statement for statement, _ in named]
        values = [variable for _, variable in named]
    statements += [
        ir.Store(target, place, value, loc=loc)
        for target, value in zip(targets, values, strict=True)
    ]
    return statements[0] if len(statements) == 1 else ir.Sequence(tuple(statements), loc=loc)


def read(
    tensors: Sequence[Tensor], place: tuple[Expression, ...], loc: Location
) -> list[Expression]:
    return [ir.Read(tensor, place, loc=loc) for tensor in tensors]
