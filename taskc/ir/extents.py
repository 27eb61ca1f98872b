"""Extents: what they amount to once the symbolic dimensions are known, and what they tell of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from taskc.errors import InternalError
from taskc.ir import build, nodes as ir
from taskc.ir.affine import affine, constant_difference
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.printer_expressions import extent_text
from taskc.ir.rewrite import substitute, walk


def extent_value(extent: int | Expression, sizes: Mapping[Variable, Any]) -> int:
    """The number; a KeyError names a dimension that is not known.

    Also a size that is passed as a scalar, not yet held to its type.
    """
    match extent:
        case int():
            return extent
        case ir.Constant(value=value):
            return int(value)
        case Variable():
            size = sizes[
                extent
            ]  # a number of NumPy's has 32 bits, perhaps; one of torch.compile's stays as it is
            return int(size) if isinstance(size, np.generic) else size
        case ir.Cast():
            return extent_value(extent.operand, sizes)
        case ir.Binary(operator="+" | "-" | "*" | "//" | "%" as operator):
            left, right = extent_value(extent.left, sizes), extent_value(extent.right, sizes)
            return compute(operator, left, right)
    raise InternalError(f"an extent can't be {type(extent).__name__}")


def python_text(extent: int | Expression, names: Mapping[Variable, str]) -> str:
    """An expression of Python that computes the same from variables of these names, and `compute`."""
    match extent:
        case int():
            return str(extent)
        case ir.Constant(value=value):
            return str(int(value))
        case Variable():
            return names[extent]
        case ir.Cast():
            return python_text(extent.operand, names)
        case ir.Binary(operator="+" | "-" | "*" | "//" | "%" as operator):
            left, right = python_text(extent.left, names), python_text(extent.right, names)
            if operator in ("//", "%"):
                return f"compute({operator!r}, {left}, {right})"
            return f"({left} {operator} {right})"
    raise InternalError(f"an extent can't be {type(extent).__name__}")


def compute(operator: str, left: int, right: int) -> int:
    """An operation of extents; a quotient by 0 and its remainder are 0."""
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if not right:
        return 0
    return left // right if operator == "//" else left % right


def are_as_many(one: Sequence[int | Expression], other: Sequence[int | Expression]) -> bool:
    """Tensors of these shapes surely have equally many elements."""
    return constant_difference(build.product(one), build.product(other)) == 0


def size_in_elements(tensor: Tensor) -> int:
    """The bytes of a tensor of constant extents in memory, with the padding of its layout."""
    if tensor.layout is not None:
        return tensor.layout.slots
    return prod([int(extent) for extent in tensor.shape])  # type: ignore[misc, arg-type]


def size_in_bytes(tensor: Tensor) -> int:
    return size_in_elements(tensor) * tensor.dtype.nbytes


class OneUnknown(NamedTuple):
    """An extent is `factor` times the one dimension in it that isn't known, and `rest`."""

    dimension: Variable
    factor: int
    rest: Expression


def one_unknown(
    extent: Expression, sizes: Mapping[Variable, int | Expression]
) -> OneUnknown | None:
    """The size that an extent determines if the others are known: n of `12 * n + 2`, and of `m * n` where m is 3."""
    unknown = {it for it in walk(extent) if isinstance(it, Variable)} - sizes.keys()
    if len(unknown) != 1:
        return None
    (dimension,) = unknown
    inside = substitute(extent, {known: build.index(n) for known, n in sizes.items()})
    form = affine(inside)
    factor = form.coefficient(dimension)
    if factor == 0:
        return None
    rest = form.without(dimension).to_expression()
    return None if dimension in walk(rest) else OneUnknown(dimension, factor, rest)


def untold(parameter: Tensor, extent: Expression, unknown: Variable) -> str:
    """Why a dimension isn't known that is in an extent of this parameter, and what to do."""
    if extent is unknown:
        return f"has the extent {unknown}, which no argument tells; pass it as out="
    told = f"nothing tells {unknown}; give an argument the extent {unknown}"
    problem = f"has the extent {extent_text(extent)}, and {told}"
    if not (factors := _factors(extent)) or parameter.layout is not None:
        return problem
    seen = parameter.argument_shape
    given = [part for it in seen for part in (factors if it is extent else (it,))]
    listed, shape = (", ".join(map(extent_text, extents)) for extents in (given, seen))
    return f"{problem}, or declare {parameter.dtype}[{listed}].reshape({shape})"


def _factors(extent: Expression) -> list[Expression]:
    """The dimensions and numbers that are multiplied, if it is that."""
    match extent:
        case Variable() | ir.Constant():
            return [extent]
        case ir.Binary(operator="*", left=left, right=right):
            first, second = _factors(left), _factors(right)
            return [*first, *second] if first and second else []
    return []
