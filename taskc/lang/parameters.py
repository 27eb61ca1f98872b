"""The parameters of a kernel, from their annotations.

An annotation is a type, which is a parameter, or a tuple of types, which is as many: in the body a tuple.

    bias: (f32[n],) if biased else ()   one or none
    inputs: (f32[n], f32[n])            two, which callers know as inputs_0 and inputs_1
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from math import prod
from types import FunctionType
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.extents import are_as_many
from taskc.ir.signature import Parameter
from taskc.ir.types import DType, TensorType, i64
from taskc.lang.context import Context
from taskc.lang.expressions import boolean_type, refuse_sub_byte
from taskc.lang.functions import Outside, plain_parameters
from taskc.lang.memory import check_layout
from taskc.lang.names import ParameterType, Role, Typed
from taskc.lang.sizes import Size
from taskc.lang.source import Source
from taskc.lang.values import describe, layout_of, shape_text


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
