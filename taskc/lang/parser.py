"""The parser makes a kernel at stage parsed (of `tc.cuda`: synchronized) of a function of Python.

Statements other than loops and assignments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import FunctionType
from typing import Any

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.types import boolean
from taskc.lang.assignments import ASSIGNMENTS
from taskc.lang.barriers import roles_statement
from taskc.lang.builtins import BUILTINS, HANDLERS
from taskc.lang.calls import call_with
from taskc.lang.context import REFUSED_EXPRESSIONS, REFUSED_STATEMENTS, Context, Frame, Scope
from taskc.lang.conversions import condition
from taskc.lang.expressions import EXPRESSIONS
from taskc.lang.functions import Outside
from taskc.lang.leaving import JUMPS, conditioned, leaving
from taskc.lang.loops import comprehension, for_loop
from taskc.lang.operators import OPERATORS
from taskc.lang.parameters import declared
from taskc.lang.sizes import Dimension
from taskc.lang.source import source_of
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


EVALUATORS = {
    **EXPRESSIONS,
    **OPERATORS,
    ast.Call: call_with(HANDLERS, BUILTINS),
    ast.ListComp: comprehension,
    ast.GeneratorExp: comprehension,
    **REFUSED_EXPRESSIONS,
}
EXECUTORS = {**STATEMENTS, **ASSIGNMENTS, **JUMPS, ast.For: for_loop, **REFUSED_STATEMENTS}


def parse_kernel(
    function: FunctionType,
    *,
    workers: int,
    target: str | None,
    is_cuda_kernel: bool,
    around: dict[str, Any],
) -> tuple[ir.Kernel, dict[Dimension, ir.Variable], dict[str, tuple[str, ...]]]:
    """The kernel that a function describes, the variables of its symbolic dimensions, and its tuples.

    `around` are the names of the function around it: annotations that are texts may use them.
    """
    name = function.__name__
    source = source_of(function, f"kernel '{name}'")
    loc = source.head()
    outside = Outside(function, around)
    context = Context(name, workers, is_cuda_kernel, target or "generic", EVALUATORS, EXECUTORS)
    context.frames.append(Frame(source, outside, []))
    parameters = declared(context, function, outside, source, f"kernel '{name}'")
    dimensions = tuple(context.dimensions.values())
    with deep(loc):
        context.run(source.tree.body, Scope(dict(parameters.values)))
        body = context.finished()
    _check_grid(context)
    _check_uniform(context)
    _check_dimensions(context, dimensions, loc)
    kernel = ir.Kernel(
        name=name,
        parameters=parameters.each,
        dimensions=dimensions,
        workers=workers,
        body=body,
        stage="synchronized" if is_cuda_kernel else "parsed",
        target=target or "generic",
        worker=context.worker,
        block=context.block_number,
        loc=loc,
    )
    return kernel, context.dimensions, parameters.tuples


def _check_grid(context: Context) -> None:
    for statement, after in zip(context.top, context.top[1:], strict=False):
        if isinstance(statement, ir.Grid):
            raise CompileError(
                "nothing can follow the loop over tiles", after.loc, "move this into the loop"
            )


def _check_uniform(context: Context) -> None:
    """Raise an error for a read of a value that differs between workers outside mapping loops, which are uniform."""
    if context.is_cuda_kernel:
        return
    for tensor, loc in context.uniform_reads:
        if tensor in context.divergent:
            raise CompileError(
                f"'{tensor.name}' may differ between workers, and is read outside a mapping loop",
                loc,
                "combine the workers' values with tc.reduce, or through tc.shared",
                (("written in a mapping loop here", context.divergent[tensor]),),
            )


def _check_dimensions(context: Context, dimensions: tuple[ir.Variable, ...], loc: Location) -> None:
    for dimension, variable in context.dimensions.items():
        if variable not in dimensions:
            raise CompileError(
                f"the dimension '{dimension}' is not an extent of any parameter",
                loc,
                "its size is learned from the arguments of a call; pass it as a scalar: n: i64",
            )
