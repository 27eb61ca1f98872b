"""Assignments.

A name that a body assigns once is a Let; one that is assigned again is a cell, a private tensor of
shape (). A name lives until the body ends in which it is first assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.types import DType
from taskc.lang.context import UNBOUND, Context
from taskc.lang.conversions import is_boolean, scalar, settled_choice, typed
from taskc.lang.expressions import name as evaluate_name, place, read
from taskc.lang.memory import require_writable, store
from taskc.lang.operators import binary, is_untyped
from taskc.lang.sizes import FloatOfSizes
from taskc.lang.values import (
    NOTHING,
    Cell,
    Choice,
    LaterStore,
    MappingLoop,
    PipelineLoop,
    RangeLoop,
    TensorView,
    TilesLoop,
    Transposed,
    Value,
    describe,
    is_constant,
    is_expression,
    is_number,
    is_scalar,
)


def assignment(context: Context, node: ast.Assign) -> None:
    if len(node.targets) > 1:
        raise context.error("one assignment has one target", node.targets[1])
    target = node.targets[0]
    value = _evaluated_for(context, target, node.value)
    assign(context, target, value, node.value, node)


def _evaluated_for(context: Context, target: ast.expr, written: ast.expr) -> Value:
    """The value of the right-hand side, named after its target; each part of a tuple is named after its own."""
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(written, ast.Tuple):
        parts = (*target.elts, *written.elts)
        is_paired = len(target.elts) == len(written.elts)
        if is_paired and not any(isinstance(part, ast.Starred) for part in parts):
            pairs = zip(target.elts, written.elts, strict=True)
            return tuple([_evaluated_for(context, *pair) for pair in pairs])
    context.root = written
    context.target = target.id if isinstance(target, ast.Name) else None
    return context.evaluate(written)


def assign(
    context: Context, target: ast.expr, value: Value, value_node: ast.expr, node: ast.stmt
) -> None:
    match target:
        case ast.Name():
            assign_name(context, target, value, value_node)
        case ast.Tuple() | ast.List():
            _unpack(context, target, value, value_node, node)
        case ast.Subscript():
            tensor, indices = _indexed(context, target)
            store(context, tensor, indices, value, target, value_node, context.locate(node))
        case _:
            raise context.error("an attribute can't be assigned", target)


def _indexed(
    context: Context, target: ast.Subscript
) -> tuple[ir.Tensor, tuple[ir.Expression, ...]]:
    """The tensor and the indices of an element that is assigned."""
    owner = context.evaluate(target.value)
    what = "only an element of a tensor can be assigned"
    context.expect((ir.Tensor, Transposed), owner, target.value, what)
    tensor, indices = place(context, owner, target)
    if isinstance(indices, TensorView):
        names = ", ".join("ijklmnop"[: len(indices.shape)])
        raise context.error(
            "an assignment stores one element",
            target,
            f"a tile or a function of the indices is stored by tc.store({ast.unparse(target)},"
            f" lambda {names}: ...), a slice by tc.copy",
        )
    return tensor, indices


def _unpack(
    context: Context,
    target: ast.Tuple | ast.List,
    value: Value,
    value_node: ast.expr,
    node: ast.stmt,
) -> None:
    context.expect((tuple, list), value, value_node, "only a tuple can be unpacked")
    for part_target in target.elts:
        if isinstance(part_target, ast.Starred):
            raise context.error("'*' in an assignment is not a part of the language", part_target)
    if len(value) != len(target.elts):
        raise context.error(f"{len(target.elts)} names can't take a tuple of {len(value)}", target)
    written = [value_node] * len(value)
    if isinstance(value_node, (ast.Tuple, ast.List)):
        written = value_node.elts
    # All values are taken before the first name changes, as in `a, b = b, a`.
    parts = [settled(context, part, target.elts[i], written[i]) for i, part in enumerate(value)]
    named = [part for part, old in zip(parts, value, strict=True) if part is not old]
    context.results.update(part for part in named if isinstance(part, ir.Variable))
    for part_target, part, part_node in zip(target.elts, parts, written, strict=True):
        assign(context, part_target, part, part_node, node)


def settled(context: Context, value: Value, target: ast.expr, node: ast.expr) -> Value:
    """The value with reads of memory evaluated now and named, also in a tuple or a list."""
    if type(value) in (tuple, list) and not is_constant(value):
        return type(value)([settled(context, part, target, node) for part in value])
    if is_number(value) or isinstance(value, FloatOfSizes) or not is_scalar(value):
        return value
    if isinstance(value, Choice):
        return settled_choice(context, value)
    name = target.id if isinstance(target, ast.Name) else "value"
    expression = scalar(context, value, node)
    if isinstance(expression, (ir.Variable, ir.Constant)):
        return expression
    return context.let(name, expression)


def _takes_a_type(context: Context, value: Value) -> bool:
    """Whether each use of a name for it may give it another type."""
    return not is_boolean(value) and (isinstance(value, Choice) or is_untyped(context, value))


_UNNAMED = (TensorView, MappingLoop, TilesLoop, PipelineLoop, RangeLoop)


def assign_name(context: Context, target: ast.Name, value: Value, value_node: ast.expr) -> None:
    name = target.id
    if value is NOTHING:
        raise context.error("this gives no value", value_node)
    if isinstance(value, _UNNAMED):
        raise context.error(
            f"a name can't stand for {describe(value)}", value_node, "write it where it is used"
        )
    known, is_here = context.binding(name)
    if isinstance(known, Cell):
        _assign_cell(context, known, value, target, value_node)
        return
    if known is not UNBOUND:
        _check_rebinding(context, known, is_here, target)
    names, loc = context.scope.names, context.locate(target)
    if not is_scalar(value):
        names[name] = settled(context, value, target, value_node)
    elif context.will_change(name):
        if _takes_a_type(context, value):
            value = settled(context, value, target, value_node)
            names[name] = context.pending_cell(name, value, loc, context.locate(value_node))
        else:
            names[name] = context.new_cell(name, scalar(context, value, value_node), loc)
    elif is_number(value) or isinstance(value, (FloatOfSizes, Choice)):
        names[name] = settled(context, value, target, value_node)
    else:
        expression = scalar(context, value, value_node)
        if isinstance(expression, ir.Variable) and expression in context.results:
            context.results.discard(expression)  # it was made for this name
            names[name] = expression
        else:
            names[name] = context.let(name, expression)


def _check_rebinding(context: Context, known: Value, is_here: bool, target: ast.Name) -> None:
    if isinstance(known, ir.Variable) and known in context.fixed:
        raise context.error(
            f"'{target.id}' is {context.fixed[known]}, and never changes",
            target,
            "use another name",
        )
    if isinstance(known, ir.Tensor) and known.scope == ir.GLOBAL:
        raise context.error(
            f"'{target.id}' is a parameter, and never changes", target, "use another name"
        )
    if not is_here:
        what = "a name from around" if is_expression(known) else describe(known)
        raise context.error(
            f"'{target.id}' is {what}; a loop or branch can't make it something else",
            target,
            "use another name",
        )


def _assign_cell(
    context: Context, cell: Cell, value: Value, target: ast.Name, value_node: ast.expr
) -> None:
    loc = context.locate(target)
    if not is_scalar(value):
        raise context.error(
            f"'{cell.name}' is a number, and this is {describe(value)}",
            value_node,
            "use another name",
        )
    tensor = cell.tensor
    if tensor is None:
        if _takes_a_type(context, value):
            value = settled(context, value, target, value_node)
            value_loc = context.locate(value_node)

            def make(dtype: DType) -> ir.Expression:
                return typed(context, value, dtype, value_loc)

            later = LaterStore(ir.Sequence(()), value, make, loc, bool(context.each))
            cell.stores.append(later)
            context.emit(later.placeholder)
            return
        number = scalar(context, value, value_node)
        if cell.tensor is None:
            initial = typed(context, cell.initial, number.dtype, cell.initial_loc or value_node)
            context.decide(cell, initial)
        tensor = cell.tensor
        assert tensor is not None
    number = typed(context, value, tensor.dtype, value_node, f"'{cell.name}' is {tensor.dtype}")
    context.note_write(tensor, loc)
    context.emit(ir.Store(tensor, (), number, loc=loc))


def augmented_assignment(context: Context, node: ast.AugAssign) -> None:
    """`x += value`: read, compute, store. `c[i, j] += a * b` is one fma."""
    target = node.target
    if isinstance(target, ast.Name):
        current = evaluate_name(context, target)
    elif isinstance(target, ast.Subscript):
        tensor, indices = _indexed(context, target)
        require_writable(context, tensor, target)
        value = _updated(context, node, read(context, tensor, indices, target))
        store(context, tensor, indices, value, target, node.value, context.locate(node))
        return
    else:
        raise context.error("an attribute can't be assigned", target)
    assign_name(context, target, _updated(context, node, current), node.value)


def _updated(context: Context, node: ast.AugAssign, current: Value) -> Value:
    value = context.evaluate(node.value)
    return binary(context, type(node.op), (current, value), (node.target, node.value), node)


ASSIGNMENTS: dict[type, Callable[[Context, Any], None]] = {
    ast.Assign: assignment,
    ast.AugAssign: augmented_assignment,
}
