"""Statements other than loops and assignments."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.types import boolean
from taskc.lang.context import Context, Scope
from taskc.lang.conversions import condition
from taskc.lang.leaving import conditioned, leaving
from taskc.lang.roles import roles_statement
from taskc.lang.values import NOTHING, Value, describe


def branch(context: Context, node: ast.If) -> None:
    decided = condition(context, context.evaluate(node.test), node.test)
    if isinstance(decided, bool):
        taken = node.body if decided else node.orelse
        context.run(taken, Scope(context.scope.names, transparent=True))
        return
    loc = context.locate(node)
    then = context.body(node.body)
    otherwise = context.body(node.orelse) if node.orelse else None
    context.emit(ir.If(decided, then, otherwise, loc=loc))


def while_loop(context: Context, node: ast.While) -> None:
    if node.orelse:
        raise context.error("'else' after a loop is not a part of the language", node.orelse[0])
    why = "the condition of a loop"
    decided = condition(context, context.evaluate_lazily(node.test, why), node.test)
    if decided is False:
        return
    loc = context.locate(node)
    with leaving(context, node) as loop:
        body = context.body(node.body)
    if decided is True:
        if loop.goes_on is None:
            hint = "end it by break, or say in its condition how long it runs"
            raise context.error("this loop never ends", node, hint)
        decided = ir.Constant(True, boolean, loc=loc)
    context.emit(ir.While(conditioned(context, loop, decided), body, loc=loc))


def assertion(context: Context, node: ast.Assert) -> None:
    text: Value = context.evaluate(node.msg) if node.msg is not None else None
    if text is None:
        text = context.frame.source.text(node.test)
    if not isinstance(text, str):
        raise context.error(
            f"the text of an assert is a string, and this is {describe(text)}", node
        )
    decided = condition(context, context.evaluate(node.test), node.test)
    if decided is False:
        raise context.error(f"assertion failed: {text}", node.test)
    if not isinstance(decided, bool):
        context.emit(ir.Assert(decided, text, loc=context.locate(node)))


def expression_statement(context: Context, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return
    context.root = node.value
    length = len(context.block)
    value = context.evaluate(node.value)
    if value is not NOTHING and len(context.block) == length:
        raise context.error("the value of this expression isn't used", node)


def return_statement(context: Context, node: ast.Return) -> None:
    if len(context.frames) == 1:
        raise context.error(
            "a kernel returns nothing", node, "store to a parameter declared tc.out[...]"
        )
    if any(not scope.transparent for scope in context.frame.scopes[1:]):
        raise context.error(
            "'return' stands at the end of a function, not in a loop or branch", node
        )
    if node.value is not None:
        context.root, context.target = node.value, context.frame.target
        context.frame.result = context.evaluate(node.value)
    context.frame.returned = True


def nothing(context: Context, node: ast.Pass) -> None:
    """`pass`"""


STATEMENTS: dict[type, Callable[[Context, Any], None]] = {
    ast.If: branch,
    ast.While: while_loop,
    ast.Assert: assertion,
    ast.Expr: expression_statement,
    ast.Return: return_statement,
    ast.With: roles_statement,
    ast.Pass: nothing,
}
