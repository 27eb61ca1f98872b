"""Operators that read shapes or change them, without moving elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import numpy as np

from taskc.lang.sizes import Size, quotient
from taskc.lang.tracing import TensorHandle
from taskc.operators.call import Call, Made, Tensor, operator
from taskc.operators.common import are_equal, axes_of, axis_of, equals
from taskc.operators.graph import Array


def with_shape(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """The same elements in another shape."""
    if isinstance(x, TensorHandle):
        return cast("TensorHandle", x.reshape(*shape))
    return x.reshape(tuple(shape))


def known_integers(numbers: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """Integers or sizes as an array."""
    array: Array = np.empty(len(numbers), object)
    array[:] = numbers
    has_sizes = any(isinstance(number, Size) for number in numbers)
    return array.reshape(shape) if has_sizes else array.astype(np.int64).reshape(shape)


@operator("Identity")
def identity(call: Call) -> Made:
    return call.given(0)


@operator("Shape")
def shape(call: Call) -> Made:
    extents = call.shape(0)[call.attribute("start", 0) : call.attribute("end")]
    return known_integers(extents, (len(extents),))


@operator("Size")
def size(call: Call) -> Made:
    return known_integers([prod(call.shape(0))], ())


@operator("Reshape")
def reshape(call: Call) -> Made:
    x, wanted = call.given(0), call.integers(1)
    shape: list[Any] = []
    for axis, extent in enumerate(wanted):
        if not call.attribute("allowzero", 0) and equals(extent, 0):
            if axis >= len(x.shape):
                raise call.node.error(f"it keeps axis {axis} of an input of {len(x.shape)}")
            extent = x.shape[axis]
        shape.append(extent)
    open_axes = [axis for axis, extent in enumerate(shape) if equals(extent, -1)]
    if len(open_axes) > 1:
        raise call.node.error(f"its shape {wanted} leaves several extents open")
    for axis in open_axes:
        shape[axis] = _rest(call, x.shape, shape[:axis] + shape[axis + 1 :])
    if not are_equal(prod(shape), prod(x.shape)):
        raise call.node.error(f"{[*x.shape]} can't become {shape}: it has other elements")
    return with_shape(x, shape)


def _rest(call: Call, whole: Sequence[Any], others: Sequence[Any]) -> Any:
    """The extent that remains where the others are known."""
    left, parts = [*whole], []
    for (
        other
    ) in others:  # cancel equal factors first: a product of sums is expanded, and can't be divided
        same = [at for at, extent in enumerate(left) if are_equal(extent, other)]
        if same:
            del left[same[0]]
        else:
            parts.append(other)
    missing = None if are_equal(prod(others), 0) else quotient(prod(left), prod(parts))
    if missing is None:
        raise call.node.error(f"{[*whole]} can't be divided into parts of {prod(others)}")
    return missing


@operator("Flatten")
def flatten(call: Call) -> Made:
    x, axis = call.given(0), call.attribute("axis", 1)
    rank = len(x.shape)
    axis = rank if axis == rank else axis_of(call, axis, rank)
    return with_shape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _axes(call: Call) -> list[int] | None:
    """The axes: an attribute before opset 13, and an input since then."""
    if call.node.version < 13:
        found: list[int] | None = call.attribute("axes")
        return found
    return call.integers(1) if call.has(1) else None


@operator("Squeeze")
def squeeze(call: Call) -> Made:
    x, named = call.given(0), _axes(call)
    rank = len(x.shape)
    if named is None:
        dropped = tuple([axis for axis in range(rank) if equals(x.shape[axis], 1)])
    else:
        dropped = axes_of(call, named, rank)
    for axis in dropped:
        if not equals(x.shape[axis], 1):
            raise call.node.error(f"it drops axis {axis}, which has {x.shape[axis]} elements")
    return with_shape(x, [extent for axis, extent in enumerate(x.shape) if axis not in dropped])


@operator("Unsqueeze")
def unsqueeze(call: Call) -> Made:
    x, named = call.given(0), _axes(call) or []
    rank = len(x.shape) + len(named)
    added, rest = axes_of(call, named, rank), iter(x.shape)
    return with_shape(x, [1 if axis in added else next(rest) for axis in range(rank)])
