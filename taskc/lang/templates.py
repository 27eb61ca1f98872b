"""Kernels of computations that the compiler writes in the language, over parameters that are IR already.

Their bodies are functions of the language as any other. What no language says, such as the value of a computation at
a place, Python functions add while the body is parsed: they take and return IR.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import FunctionType
from typing import Any

from taskc.errors import NOWHERE
from taskc.ir import nodes as ir
from taskc.ir.program import Computation
from taskc.lang.context import Context, FunctionFrame, Scope
from taskc.lang.functions import Outside
from taskc.lang.parser import EVALUATORS, EXECUTORS
from taskc.lang.source import source_of
from taskc.lang.values import NOTHING, Method, Value


def kernel_of_template(
    computation: Computation,
    workers: int,
    template: Callable[..., Any],
    *functions: Callable[..., Any],
) -> ir.Kernel:
    """The kernel of a computation with a template's body.

    functions  the template's arguments: functions over IR, which run while it is parsed. A statement that one returns
               becomes a part of the body, anything else is its value
    """
    assert isinstance(template, FunctionType)
    source = source_of(template, f"template '{template.__name__}'")
    name, dimensions = computation.name, computation.dimensions
    context = Context(name, workers, False, "generic", EVALUATORS, EXECUTORS)
    context.place = NOWHERE
    context.nonnegative.update(dimensions)
    context.frames.append(FunctionFrame(source, Outside(template), []))

    def method(function: Callable[..., Any]) -> Method:
        def call(node: ast.Call) -> Value:
            made = function(*map(context.evaluate, node.args))
            if isinstance(made, ir.Statement):
                context.emit(made)
                return NOTHING
            return NOTHING if made is None else made

        return Method(call)

    names = [argument.arg for argument in source.tree.args.args]
    context.run(source.tree.body, Scope(dict(zip(names, map(method, functions), strict=True))))
    parameters, body = computation.parameters, context.finished()
    return ir.Kernel(name, parameters, dimensions, workers, body, loc=computation.loc)
