"""How one comes to a place of a program: loops and guards, from the kernel's body down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """`condition` is true below, or false where `holds` is False.

    An `asserted` one is the promise of an Assert: nothing is skipped because of it.
    """

    condition: Expression
    holds: bool = True
    asserted: bool = False


Loop: TypeAlias = ir.Grid | ir.For | ir.Pipeline | ir.While | ir.Each | ir.Move
Phase: TypeAlias = ir.Each | ir.Move
Frame: TypeAlias = Loop | Guard
Path: TypeAlias = tuple[Frame, ...]


def conjuncts(condition: Expression, holds: bool) -> Iterator[tuple[Expression, bool]]:
    """The conditions that all hold, or don't, where this one does."""
    match condition:
        case ir.Unary(operator="not"):
            yield from conjuncts(condition.operand, not holds)
        case ir.Binary(operator="and") if holds:
            yield from conjuncts(condition.left, True)
            yield from conjuncts(condition.right, True)
        case ir.Binary(operator="or") if not holds:
            yield from conjuncts(condition.left, False)
            yield from conjuncts(condition.right, False)
        case _:
            yield condition, holds
