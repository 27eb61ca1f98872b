"""The operands of a target operation, sorted by their kinds in ir/operations.py."""

from __future__ import annotations

from typing import NamedTuple

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression
from taskc.ir.operations import OPERATIONS


class Operands(NamedTuple):
    """Each kind in its order: places (of the own block or remote), values, and constants as numbers."""

    places: list[ir.Address]
    values: list[Expression]
    numbers: list[int]


def operands_of(node: ir.Do) -> Operands:
    """Sort an operation's operands by kind."""
    found = Operands([], [], [])
    for kind, operand in zip(
        OPERATIONS[node.operation].kinds(len(node.operands)), node.operands, strict=True
    ):
        if isinstance(operand, ir.Address):
            found.places.append(operand)
        elif kind == "constant" and isinstance(operand, ir.Constant):
            found.numbers.append(int(operand.value))
        else:
            found.values.append(operand)
    return found
