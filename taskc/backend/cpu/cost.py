"""Roughly how many operations a block of a kernel is, to tell what is worth waking a thread for."""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.nodes import Statement
from taskc.ir.rewrite import expressions, statements, walk

_UNKNOWN_TRIPS = 64
_MATH = 20


def cost_of(statement: Statement) -> int:
    """Operations of one vector of workers; a loop whose length isn't known counts for some."""
    own = sum(_weight(node) for part in expressions(statement) for node in walk(part))
    below = sum(cost_of(inner) for inner in statements(statement))
    match statement:
        case ir.For(start=ir.Constant(value=start), stop=ir.Constant(value=stop), step=step):
            return own + len(range(int(start), int(stop), step)) * below
        case ir.For() | ir.While():
            return own + _UNKNOWN_TRIPS * (own + below)
    return own + below


def _weight(node: object) -> int:
    if isinstance(node, ir.Unary | ir.Binary):
        return _MATH if node.operator in MATH_FUNCTIONS else 1
    return 1 if isinstance(node, ir.Read | ir.Fused | ir.Address) else 0
