"""The parser makes a kernel at stage parsed (of `tc.cuda`: synchronized) of a function of Python.

Statements other than loops and assignments are handled here.

The annotation of a parameter is a type, or a tuple of types, which stands for as many parameters: in the body, a tuple.

    bias: (f32[n],) if biased else ()   one or none
    inputs: (f32[n], f32[n])            two, which callers know as inputs_0 and inputs_1
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from math import prod
from types import FunctionType
from typing import Any

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.extents import are_as_many
from taskc.ir.signature import Parameter
from taskc.ir.types import DType, TensorType, boolean, i64
from taskc.lang import operations as operations
from taskc.lang.assignments import ASSIGNMENTS
from taskc.lang.barriers import roles_statement
from taskc.lang.builtins import BUILTINS
from taskc.lang.calls import call_with
from taskc.lang.context import (
    REFUSED_EXPRESSIONS,
    REFUSED_STATEMENTS,
    Context,
    FunctionFrame,
    Scope,
)
from taskc.lang.conversions import condition
from taskc.lang.expressions import EXPRESSIONS, boolean_type, refuse_sub_byte
from taskc.lang.functions import Outside, plain_parameters
from taskc.lang.loops import JUMPS, comprehension, conditioned, for_loop, leaving
from taskc.lang.memory import check_layout
from taskc.lang.names import ParameterType, Role, Typed
from taskc.lang.operators import OPERATORS
from taskc.lang.sizes import Dimension, Size
from taskc.lang.source import Source, source_of
from taskc.lang.values import NOTHING, Value, describe, layout_of, shape_text


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
    context.expect(str, text, node, "the text of an assert is a string")
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
    ast.Call: call_with(BUILTINS),
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
    context.frames.append(FunctionFrame(source, outside, []))
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
    """Reject reads outside of mapping loops if a mapping loop gives each worker a value of its own."""
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


# --- declared parameters -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameters:
    """The declared parameters of a kernel or a program.

    each    one by one, as callers give them
    values  by the names in the source: a parameter or a tuple of some
    """

    each: tuple[Parameter, ...]
    values: dict[str, Parameter | tuple[Parameter, ...]]

    @property
    def tuples(self) -> dict[str, tuple[str, ...]]:
        """The names of the parts of each parameter that is a tuple."""
        items = self.values.items()
        return {
            name: tuple([part.name for part in value])
            for name, value in items
            if isinstance(value, tuple)
        }


def declared(
    context: Context, function: FunctionType, outside: Outside, source: Source, what: str
) -> Parameters:
    """The parameters of `what`, as in "kernel 'matmul'"."""
    plain_parameters(source, what)
    each: dict[str, Parameter] = {}
    values: dict[str, Parameter | tuple[Parameter, ...]] = {}
    for node in source.tree.args.args:
        declaration = _annotation(context, function, outside, node)
        types = declaration if isinstance(declaration, tuple) else (declaration,)
        names = [node.arg]
        if len(types) != 1:
            names = [f"{node.arg}_{number}" for number in range(len(types))]
        parameters = [
            _parameter(context, node, name, part) for name, part in zip(names, types, strict=True)
        ]
        for part in parameters:
            if part.name in each:
                raise context.error(
                    f"two parameters are called '{part.name}'",
                    node,
                    note=("one here", each[part.name].loc),
                )
            each[part.name] = part
        values[node.arg] = tuple(parameters) if isinstance(declaration, tuple) else parameters[0]
    return Parameters(tuple(each.values()), values)


def _annotation(
    context: Context, function: FunctionType, outside: Outside, node: ast.arg
) -> object:
    if node.annotation is None:
        raise context.error(
            f"the parameter '{node.arg}' has no type", node, f"for example {node.arg}: f32[64, 64]"
        )
    annotation = function.__annotations__[node.arg]
    if isinstance(annotation, str):
        return _evaluate(context, function, outside, annotation, node.annotation)
    return annotation


def _parameter(context: Context, node: ast.arg, name: str, given: object) -> Parameter:
    """The tensor or scalar that a type declares."""
    assert node.annotation is not None
    given = boolean_type(given)
    loc = context.locate(node)
    if isinstance(given, DType):
        refuse_sub_byte(context, given, node.annotation)
        scalar = ir.Variable(name, given, loc=loc)
        context.fixed[scalar] = "a parameter"
        return scalar
    role = "in"
    if isinstance(given, ParameterType):
        role, given = given.role, given.type
    if not isinstance(given, TensorType):
        hint = f"write {given!r}[f32[64, 64]]" if isinstance(given, Role | Typed) else None
        if isinstance(given, list):
            hint = "several parameters are a tuple of types: (f32[64], f32[64])"
        raise context.error(
            f"the type of '{name}' is an element type or a tensor type, and this is"
            f" {describe(given)}",
            node.annotation,
            hint or "for example f32[64, 64], tc.out[f32[64]] or i32",
        )
    if role != "in":
        refuse_sub_byte(context, given.dtype, node.annotation)
    check_layout(context, given, node.annotation)
    shape = _extents(context, given.shape, node.annotation)
    tensor = ir.Tensor(name, given.dtype, shape, ir.GLOBAL, layout_of(given), role=role, loc=loc)
    if given.given is None:
        return tensor
    tensor = replace(tensor, given=_extents(context, given.given, node.annotation))
    if not are_as_many(tensor.argument_shape, shape):
        raise context.error(
            f"{given.dtype}{shape_text(tensor.argument_shape)} isn't surely as many elements as"
            f" {given.dtype}{shape_text(shape)}",
            node.annotation,
        )
    return tensor


def _extents(
    context: Context, shape: tuple[Any, ...], node: ast.expr
) -> tuple[int | ir.Expression, ...]:
    for extent in shape:
        if not isinstance(extent, (int, Size)):
            raise context.error(
                "an extent is an integer, a tc.dim or computed from some, and this is"
                f" {describe(extent)}",
                node,
                'what only a call knows is n = tc.dim("n"), and then f32[n]',
            )
    numbers = [extent for extent in shape if isinstance(extent, int)]
    if prod(numbers) > i64.maximum:
        raise context.error(
            f"{' x '.join(map(str, numbers))} elements are more than i64 counts", node
        )
    return tuple([context.symbolic(extent) for extent in shape])


def _evaluate(
    context: Context, function: FunctionType, outside: Outside, text: str, node: ast.expr
) -> object:
    """An annotation under `from __future__ import annotations`."""
    try:
        return eval(text, function.__globals__, outside)
    except NameError as error:
        raise context.error(
            f"'{error.name}' is not defined, in an annotation that is a text",
            node,
            "under 'from __future__ import annotations' it sees this function, the one around it,"
            " and the module",
        ) from None
    except Exception as error:
        raise context.error(str(error) or type(error).__name__, node) from None
