"""What an integer sum adds up.

`synchronize` and `layout` part an index into what all workers share and the rest, `hoist` puts outer loops first,
`overlap` finds the pixels of an image, proofs take rows and columns apart, and the simulator asks whether turns differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping as Dictionary
from types import MappingProxyType
from typing import TypeAlias

from taskc.ir.nodes import Binary, Constant, Expression, Variable
from taskc.ir.rewrite import operands_first

Names: TypeAlias = Dictionary[Variable, Expression]


def addends(
    expression: Expression,
    names: Names = MappingProxyType({}),
    opens: Callable[[Expression], bool] = lambda inner: True,
) -> list[tuple[Expression, int]]:
    """The terms, from left to right, and how many times each is added: -1 is subtracted once.

    names  what is looked through
    opens  whether a sum that a constant multiplies is taken apart as well
    """

    def sums(node: Expression) -> list[Expression]:
        return [part for part, _, is_sum in _parts(node, names, opens) if is_sum]

    times: dict[int, int] = {id(expression): 1}
    found: list[tuple[Expression, int]] = []
    # Every sum within the sum once, however often it is used.
    for node in reversed(operands_first(expression, sums)):
        count, parts = times[id(node)], _parts(node, names, opens)
        if not parts:
            found.append((node, count))
        for part, factor, is_sum in reversed(parts):
            if is_sum:
                times[id(part)] = times.get(id(part), 0) + factor * count
            else:
                found.append((part, factor * count))
    return found[::-1]


def _parts(
    node: Expression, names: Names, opens: Callable[[Expression], bool]
) -> list[tuple[Expression, int, bool]]:
    """(part, factor, whether it is looked into) of a sum, a multiple, or a name; none of anything else."""
    match node:
        case Variable() if node in names:
            return [(names[node], 1, True)]
        case Binary(operator="+" | "-" as operator, left=left, right=right):
            return [(left, 1, True), (right, 1 if operator == "+" else -1, True)]
        case (
            Binary(operator="*", left=inner, right=Constant(value=int(factor)))
            | Binary(operator="*", left=Constant(value=int(factor)), right=inner)
        ) if factor:
            return [(inner, factor, opens(inner))]
    return []
