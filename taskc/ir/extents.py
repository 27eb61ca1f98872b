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
            return _compute(operator, left, right)
    raise InternalError(f"an extent can't be {type(extent).__name__}")


def _compute(operator: str, left: int, right: int) -> int:
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
    """What a tensor of constant extents takes in memory, with the padding of its layout."""
    if tensor.layout is not None:
        return tensor.layout.slots
    return prod([int(extent) for extent in tensor.shape])  # type: ignore[misc, arg-type]


def size_in_bytes(tensor: Tensor) -> int:
    return size_in_elements(tensor) * tensor.dtype.nbytes


class ShiftedDimension(NamedTuple):
    """An extent is `more` than a dimension."""

    dimension: Variable
    more: int


def shifted_dimension(extent: Expression) -> ShiftedDimension | None:
    """The dimension that follows from an extent: from `n + 2`, but not from `m * n`."""
    form = affine(extent)
    if len(form.terms) == 1:
        ((atom, factor),) = form.terms.items()
        if factor == 1 and isinstance(atom, Variable):
            return ShiftedDimension(atom, form.constant)
    return None
