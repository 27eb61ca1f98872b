"""Roles of warps in a `tc.cuda` kernel: warp specialization, as its author writes it."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.target import WARP
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context
from taskc.lang.conversions import constant_integer
from taskc.lang.intrinsics import INTRINSICS
from taskc.lang.values import Value


def roles_statement(context: Context, node: ast.With) -> None:
    """`with tc.cuda.roles():` around `with tc.cuda.role("name", warps=n):` blocks."""
    _required_call(context, node, "cuda.roles")
    context.require_cuda_kernel("tc.cuda.roles", node)
    if context.in_role:
        raise context.error("roles can't be nested", node)
    context.require_phase("tc.cuda.roles", node)
    workers, first = context.group, 0
    roles = []
    context.in_role = True
    for statement in node.body:
        if not isinstance(statement, ast.With):
            raise context.error(
                "only roles stand here", statement, 'with tc.cuda.role("producer", warps=1): ...'
            )
        bound = _required_call(context, statement, "cuda.role")
        name = context.evaluate(bound["name"])
        if not isinstance(name, str):
            raise context.error("the name of a role is a string", bound["name"])
        warps_node = bound["warps"]
        warps = constant_integer(context, context.evaluate(warps_node), warps_node, "the number")
        if warps < 1:
            raise context.error("a role has at least 1 warp", warps_node)
        context.group, context.first = warps * WARP, first
        roles.append(ir.Role(name, first, context.group, context.body(statement.body)))
        first += context.group
    context.in_role = False
    context.group, context.first = workers, 0
    if first != workers:
        raise context.error(
            f"the roles have {first} workers together, and the kernel has {workers}", node
        )
    context.emit(ir.Roles(tuple(roles), loc=context.locate(node)))


def _required_call(context: Context, node: ast.With, name: str) -> dict[str, ast.expr]:
    item = node.items[0]
    call = item.context_expr
    is_one = len(node.items) == 1 and item.optional_vars is None
    if is_one and isinstance(call, ast.Call) and context.evaluate(call.func) is INTRINSICS[name]:
        return bind(context, call, f"tc.{name}")
    expected = 'tc.cuda.role("name", warps=n)' if name == "cuda.role" else "tc.cuda.roles()"
    raise context.error(f"'with' is only for {expected} here", node)


def _only_with(name: str) -> Handler:
    def handler(context: Context, node: ast.Call) -> Value:
        raise context.error(f"tc.{name} is used in a 'with' statement", node)

    return handler


HANDLERS: dict[str, Handler] = {
    "cuda.roles": _only_with("cuda.roles"),
    "cuda.role": _only_with("cuda.role"),
}
