"""Shared by the backends: the operands of a target operation sorted by kind, and the line of a `tc.print`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression
from taskc.ir.operations import OPERATIONS


class Operands(NamedTuple):
    """Operands by their kinds in ir/operations.py, each kind in its order.

    places   addresses, of the own block or remote
    values   expressions
    numbers  constants
    """

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


def printed(text: str, values: Iterable[Any]) -> str:
    """The line of a `tc.print`: each `{}` is replaced by a value; other braces are kept."""
    first, *pieces = text.split("{}")
    return first + "".join([f"{v}{piece}" for v, piece in zip(values, pieces, strict=True)])
