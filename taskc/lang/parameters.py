"""The parameters of a kernel: what their annotations say."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping as Dictionary
from dataclasses import replace
from types import FunctionType
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.extents import are_as_many
from taskc.ir.types import DType, TensorType
from taskc.lang.context import Context
from taskc.lang.expressions import boolean_type
from taskc.lang.functions import Outside
from taskc.lang.memory import check_layout
from taskc.lang.names import ParameterType, Role
from taskc.lang.sizes import Size
from taskc.lang.values import describe, shape_text


class _Names(Dictionary[str, Any]):
    """What an annotation that is a text may mention."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def __getitem__(self, name: str) -> Any:
        return self._outside(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outside.names)

    def __len__(self) -> int:
        return len(self._outside.names)


def parameter(
    context: Context, function: FunctionType, outside: Outside, node: ast.arg
) -> ir.Tensor | ir.Variable:
    """The tensor or scalar that a parameter is."""
    if node.annotation is None:
        raise context.error(
            f"the parameter '{node.arg}' has no type", node, f"for example {node.arg}: f32[64, 64]"
        )
    given = function.__annotations__[node.arg]
    if isinstance(given, str):
        given = _evaluate(context, function, outside, given, node.annotation)
    given = boolean_type(given)
    loc = context.locate(node)
    if isinstance(given, DType):
        scalar = ir.Variable(node.arg, given, loc=loc)
        context.fixed[scalar] = "a parameter"
        return scalar
    role = "in"
    if isinstance(given, ParameterType):
        role, given = given.role, given.type
    if not isinstance(given, TensorType):
        hint = f"write {given!r}[f32[64, 64]]" if isinstance(given, Role) else None
        raise context.error(
            f"the type of '{node.arg}' is an element type or a tensor type, and this is"
            f" {describe(given)}",
            node.annotation,
            hint or "for example f32[64, 64], tc.out[f32[64]] or i32",
        )
    if given.layout is not None:
        check_layout(context, given, node.annotation)
    shape = _extents(context, given.shape, node.annotation)
    tensor = ir.Tensor(node.arg, given.dtype, shape, ir.GLOBAL, given.layout, role=role, loc=loc)  # type: ignore[arg-type]
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
            )
    return tuple([context.symbolic(extent) for extent in shape])


def _evaluate(
    context: Context, function: FunctionType, outside: Outside, text: str, node: ast.expr
) -> object:
    """An annotation under `from __future__ import annotations`."""
    try:
        return eval(text, function.__globals__, _Names(outside))
    except NameError as error:
        raise context.error(
            f"'{error.name}' is not defined, in an annotation that is a text",
            node,
            "under 'from __future__ import annotations' it sees this function, the one around it,"
            " and the module",
        ) from None
    except Exception as error:
        raise context.error(str(error) or type(error).__name__, node) from None
