"""How one comes to a place of a program: loops and guards, from the kernel's body down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from taskc.analysis.touches import Loop
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Variable


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """`condition` is true below, or false where `holds` is False.

    An `asserted` one is the promise of an Assert: nothing is skipped because of it. One `of_sizes` is
    known everywhere, outside of the loops around it too.
    """

    condition: Expression
    holds: bool = True
    asserted: bool = False
    of_sizes: bool = False


Phase: TypeAlias = ir.Each | ir.Move
Frame: TypeAlias = Loop | Guard
Path: TypeAlias = tuple[Frame, ...]


def conjuncts(
    condition: Expression, holds: bool, names: Mapping[Variable, Expression] | None = None
) -> Iterator[tuple[Expression, bool]]:
    """The conditions that all hold, or don't, where this one does; `names` are seen through."""
    yield from _conjuncts(condition, holds, names or {}, set())


def _conjuncts(
    condition: Expression,
    holds: bool,
    names: Mapping[Variable, Expression],
    seen: set[tuple[Variable, bool]],
) -> Iterator[tuple[Expression, bool]]:
    match condition:
        case ir.Unary(operator="not"):
            yield from _conjuncts(condition.operand, not holds, names, seen)
        case ir.Binary(operator="and" | "or") if (condition.operator == "and") == holds:
            yield from _conjuncts(condition.left, holds, names, seen)
            yield from _conjuncts(condition.right, holds, names, seen)
        case Variable() if condition in names:
            if (condition, holds) not in seen:
                seen.add((condition, holds))
                yield from _conjuncts(names[condition], holds, names, seen)
        case _:
            yield condition, holds
