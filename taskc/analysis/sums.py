"""The terms of an integer sum.

`synchronize` and `layout` split an index into its uniform part and the rest, `hoist` puts outer loops first,
`overlap` finds the pixels of an image, proofs separate rows and columns, and the simulator checks whether turns differ.
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
