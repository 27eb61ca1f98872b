"""The parser makes a kernel at stage parsed (of `tc.cuda`: synchronized) of a function of Python."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.depth import deep
from taskc.lang.assignments import ASSIGNMENTS
from taskc.lang.builtins import BUILTINS, HANDLERS
from taskc.lang.calls import call_with
from taskc.lang.context import Context, Frame, Scope
from taskc.lang.expressions import EXPRESSIONS
from taskc.lang.functions import Outside
from taskc.lang.leaving import JUMPS
from taskc.lang.loops import comprehension, for_loop
from taskc.lang.operators import OPERATORS
from taskc.lang.parameters import declared
from taskc.lang.refusals import REFUSED_EXPRESSIONS, REFUSED_STATEMENTS
from taskc.lang.sizes import Dimension
from taskc.lang.source import source_of
from taskc.lang.statements import STATEMENTS

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
