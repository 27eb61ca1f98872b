"""What an extent amounts to, once the symbolic dimensions are known."""

from __future__ import annotations

from collections.abc import Mapping

from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Variable


def extent_value(extent: int | Expression, sizes: Mapping[Variable, int]) -> int:
    """The number; a KeyError names a dimension that is not known."""
    match extent:
        case int():
            return extent
        case ir.Constant(value=value):
            return int(value)
        case Variable():
            return sizes[extent]
        case ir.Binary(operator="+" | "-" | "*" | "//" as operator):
            left, right = extent_value(extent.left, sizes), extent_value(extent.right, sizes)
            return compute(operator, left, right)
    raise InternalError(f"an extent can't be {type(extent).__name__}")


def compute(operator: str, left: int, right: int) -> int:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    return left // right if right else 0
