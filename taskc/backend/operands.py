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
    sorted_operands = Operands([], [], [])
    for kind, operand in zip(
        OPERATIONS[node.operation].kinds(len(node.operands)), node.operands, strict=True
    ):
        if isinstance(operand, ir.Address):
            sorted_operands.places.append(operand)
        elif kind == "constant" and isinstance(operand, ir.Constant):
            sorted_operands.numbers.append(int(operand.value))
        else:
            sorted_operands.values.append(operand)
    return sorted_operands
