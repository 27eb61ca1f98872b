"""Loops while they are parsed, and the cells that `break` and `continue` clear: see jumps.py."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.types import boolean
from taskc.lang.context import Context
from taskc.lang.jumps import Leaving, Loop, Skippable, may_end


@contextmanager
def leaving(context: Context, node: Loop, what: str | None = None) -> Iterator[Leaving]:
    """The context of the parse of a loop's body."""
    loop = Leaving(what, context.in_role)
    if what is None and may_end(node):
        loop.goes_on = _cell(context, "goes_on", node)
    context.frame.loops.append(loop)
    yield loop
    context.frame.loops.pop()


def while_it_goes_on(context: Context, loop: Leaving, body: ir.Statement) -> ir.Statement:
    """The body, unless an iteration before has ended the loop."""
    if loop.goes_on is None:
        return body
    return ir.If(_is_set(context, loop.goes_on), body, loc=loop.goes_on.loc)


def conditioned(context: Context, loop: Leaving, condition: ir.Expression) -> ir.Expression:
    """The condition, which isn't evaluated once an iteration has ended the loop."""
    if loop.goes_on is None:
        return condition
    return ir.Binary("and", _is_set(context, loop.goes_on), condition, loc=condition.loc)


def _cell(context: Context, name: str, node: ast.stmt) -> ir.Tensor:
    loc = context.locate(node)
    tensor = context.new_cell(name, ir.Constant(True, boolean, loc=loc), loc).tensor
    assert tensor is not None
    return tensor


def _is_set(context: Context, cell: ir.Tensor) -> ir.Read:
    context.note_read(cell, cell.loc)
    return ir.Read(cell, (), loc=cell.loc)


def _clear(context: Context, cell: ir.Tensor, node: ast.stmt) -> None:
    loc = context.locate(node)
    context.note_write(cell, loc)
    context.emit(ir.Store(cell, (), ir.Constant(False, boolean, loc=loc), loc=loc))


def skippable(context: Context, node: Skippable) -> None:
    runs = _cell(context, "runs", node)
    loop = context.frame.loops[-1]
    loop.runs.append(runs)
    context.execute(node.statement)
    loop.runs.pop()
    condition = _is_set(context, runs)
    context.emit(ir.If(condition, context.body(node.rest), loc=context.locate(node)))


def jump(context: Context, node: ast.Break | ast.Continue) -> None:
    loop = context.frame.loops[-1]
    if context.in_role is not loop.in_role:
        word = "break" if isinstance(node, ast.Break) else "continue"
        raise context.error(f"'{word}' can't leave a role, since others don't", node)
    if isinstance(node, ast.Break):
        if loop.goes_on is None:
            raise context.error(
                f"'break' ends a loop over a range or a while, and this is {loop.what}",
                node,
                "put the rest into an if, or leave it out by continue",
            )
        _clear(context, loop.goes_on, node)
    for runs in loop.runs:
        _clear(context, runs, node)


JUMPS: dict[type, Callable[[Context, Any], None]] = {
    ast.Break: jump,
    ast.Continue: jump,
    Skippable: skippable,
}
