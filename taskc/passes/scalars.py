"""Private scalars that change in straight-line code become names (SSA form).

local value: f32                         let value = x[i] * 2.0
value = x[i] * 2.0               ->      let value_1 = value + 1.0
value = value + 1.0                      y[i] = value_1
y[i] = value
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.nodes import LOCAL, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import map_children, map_expressions, map_statements, walk


def named_scalars(parts: Sequence[Statement]) -> Sequence[Statement]:
    """Statements with such scalars replaced; unchanged if they change in branches or loops.

    The last statement may be an If that reads them.
    """
    scalars = {
        part.tensor
        for part in parts
        if isinstance(part, ir.Allocate) and part.tensor.scope == LOCAL and not part.tensor.shape
    }
    if not scalars or not all(_is_plain(part, scalars, part is parts[-1]) for part in parts):
        return parts
    now: dict[Tensor, Variable] = {}
    unknown: set[Tensor] = set()  # scalars that are read before they have a value

    def renamed(node: Expression) -> Expression:
        if isinstance(node, ir.Read) and node.tensor in scalars:
            if node.tensor in now:
                return now[node.tensor]
            unknown.add(node.tensor)
        return map_children(node, renamed)

    new: list[Statement] = []
    for part in parts:
        match part:
            case ir.Let():
                new.append(replace(part, value=renamed(part.value)))
            case ir.Store(tensor=tensor) if tensor in scalars:
                value = renamed(part.value)
                now[tensor] = Variable(tensor.name, tensor.dtype, loc=part.loc)
                new.append(ir.Let(now[tensor], value, loc=part.loc))
            case ir.Store():
                indices = tuple([renamed(index) for index in part.indices])
                new.append(replace(part, indices=indices, value=renamed(part.value)))
            case ir.Allocate(tensor=tensor, fill=fill) if fill is not None:
                now[tensor] = Variable(tensor.name, tensor.dtype, loc=part.loc)
                new.append(ir.Let(now[tensor], fill, loc=part.loc))
            case ir.If():
                new.append(_everywhere(part, renamed))
            case _:
                pass  # an Allocate without a fill: no value so far
    return parts if unknown else new


def _is_plain(part: Statement, scalars: set[Tensor], is_last: bool) -> bool:
    match part:
        case ir.Let() | ir.Store():
            return True
        case ir.Allocate(tensor=tensor):
            return tensor in scalars
        case ir.If() if is_last:
            return not any(isinstance(n, ir.Store) and n.tensor in scalars for n in walk(part))
    return False


def _everywhere(node: Statement, change: Callable[[Expression], Expression]) -> Statement:
    """A statement with `change` applied to all its expressions, nested statements included."""
    changed = map_expressions(node, change)
    return map_statements(changed, lambda inner: _everywhere(inner, change))
