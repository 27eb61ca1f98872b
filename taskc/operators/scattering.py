"""Operators that write elements at places that are data: ScatterElements, ScatterND, TensorScatter, MaxUnpool.

Col2Im: windows, a column for each, added up where they overlap.
"""

from __future__ import annotations

from math import prod

import taskc as tc
from taskc import boolean, i64
from taskc.kernels.indices import (
    REDUCTIONS,
    checked_starts,
    scatter_elements as along,
    scatter_planes,
    scatter_slices,
)
from taskc.kernels.windows import columns_added
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.movement import check_lines, padded
from taskc.operators.operands import are_equal, kernel_of, spliced
from taskc.operators.tensors import Function, Shape, Tensor, computed, reshaped
from taskc.operators.windows import spatial as spatial_of, windows_of
from taskc.programs.tracing import Computed, Element, TensorHandle


def _reduction(call: Call) -> Function:
    name = call.attribute("reduction", "none")
    if name not in REDUCTIONS:
        raise call.node.error(f"taskc doesn't know its reduction '{name}'")
    return tc.function(REDUCTIONS[name])


@operator("Scatter", since=9)
@operator("ScatterElements", since=11)
def scatter_elements(call: Call) -> Made:
    call.require_kernel()
    x, places, updates = (call.tensor(position) for position in range(3))
    axis = call.axis(len(x.shape), 0)
    check_lines(call, axis)
    result = computed(x.shape, lambda *at: x[at], name="copy")
    if prod(places.shape):
        kernel = along(axis, x, places, _reduction(call), _problem(call))
        kernel(places, updates, result)
    return result


def _problem(call: Call) -> str:
    """The error when the model runs and an index is out of bounds."""
    return f"{call.node.title}: its indices are within the extents of '{call.node.inputs[0]}'"


@operator("ScatterND", since=11, ranks=(None, at_least(1)))
def scatter_nd(call: Call) -> Made:
    call.require_kernel()
    x, places, updates = (call.tensor(position) for position in range(3))
    depth = places.shape[-1]
    count, inner = prod(places.shape[:-1]), prod(x.shape[depth:])
    result = computed(x.shape, lambda *at: x[at], name="copy")
    if prod(updates.shape):
        lines = result.reshape(*x.shape[:depth], inner)
        kernel = scatter_slices(
            lines, places.dtype, (count, depth), _reduction(call), _problem(call)
        )
        kernel(places.reshape(count, depth), updates.reshape(count, inner), lines)
    return result


@operator("TensorScatter", since=24, ranks=(None, None, 1))
def tensor_scatter(call: Call) -> Made:
    """A cache with an update along an axis; each element of the batch has its own start."""
    call.require_kernel()
    past, update = call.tensor(0), call.tensor(1)
    rank, mode = len(past.shape), call.attribute("mode", "linear")
    axis = call.axis(rank, -2)
    most, count = past.shape[axis], update.shape[axis]
    others = [n for n in range(rank) if n != axis]
    fits = len(update.shape) == rank and all(
        are_equal(past.shape[n], update.shape[n]) for n in others
    )
    is_longer = isinstance(count, int) and isinstance(most, int) and count > most
    if axis == 0 or not fits or is_longer:
        raise call.node.error(
            f"{[*update.shape]} isn't a part of {[*past.shape]} along axis {axis}"
        )
    if mode not in ("linear", "circular"):
        raise call.node.error(f"taskc doesn't know its mode '{mode}'")
    is_circular = mode == "circular"
    first = None if not call.has(2) else _starts(call, past.shape, axis, is_circular)

    def value(*at: Element) -> Computed:
        behind = at[axis] - (0 if first is None else first[at[0]])
        place = behind % most if is_circular else behind
        return update[spliced(at, axis, axis + 1, (place,))] if 0 <= place < count else past[at]

    return call.compute(past.shape, tc.function(value))


def _starts(call: Call, shape: Shape, axis: int, is_circular: bool) -> TensorHandle:
    """The start of each update as i64; checked to be in bounds unless places wrap around."""
    given = call.tensor(2)
    if is_circular:
        return computed(given.shape, lambda b: given[b].to(i64))
    problem = f"{call.node.title}: its update ends within '{call.node.inputs[0]}'"
    most = shape[axis] - call.shape(1)[axis]
    starts: TensorHandle = checked_starts(given.dtype, given.shape[0], most, problem)(given)
    return starts


@operator("MaxUnpool", since=9)
def max_unpool(call: Call) -> Made:
    """Zeros, with each number at the place where MaxPool found it, counted through MaxPool's input."""
    call.require_kernel()
    x, places = call.tensor(0), call.tensor(1)
    if len(places.shape) != len(x.shape) or not all(map(are_equal, places.shape, x.shape)):
        raise call.node.error(f"it has places {[*places.shape]} for numbers {[*x.shape]}")
    extents = spatial_of(call, x.shape)
    windows = windows_of(call, extents, tuple(call.attribute("kernel_shape")))
    made = windows.extents(extents)
    planes, count, volume = prod(x.shape[:2]), prod(extents), prod(made)
    dtype = x.dtype
    y = computed((planes, volume), lambda plane, n: dtype(0), name="zeros")
    if prod(x.shape):
        kernel = scatter_planes(x.dtype, (planes, count, volume), _problem_of_planes(call))
        kernel(x.reshape(planes, count), places.reshape(planes, count), y)
    whole = y.reshape(*x.shape[:2], *made)
    return _with_zeros(call, whole) if call.has(2) else whole


def _problem_of_planes(call: Call) -> str:
    return f"{call.node.title}: each of its places is in the channel of its number"


def _with_zeros(call: Call, x: TensorHandle) -> Tensor:
    """The result padded with zeros to the shape that the model names."""
    shape = call.integers(2)
    if len(shape) != len(x.shape) or any(
        isinstance(extent, int) and isinstance(own, int) and extent < own
        for extent, own in zip(shape, x.shape, strict=True)
    ):
        raise call.node.error(f"what it makes, {[*x.shape]}, doesn't fit into {shape}")
    added = [extent - own for extent, own in zip(shape, x.shape, strict=True)]
    return padded(x, [0] * len(shape), added, tc.function(lambda: 0), call.name)


@operator("Col2Im", since=18)
def col2im(call: Call) -> Made:
    (x,) = call.tensors(1)
    extents, size = tuple(call.integers(1)), tuple(call.integers(2))
    windows = windows_of(call, extents, size)
    counts = windows.counts(extents)
    taps, places = prod(size), prod(counts)
    if len(x.shape) != 3 or x.dtype is boolean:
        raise call.node.error(f"its columns are {x.dtype}{[*x.shape]}, and not numbers of 3 axes")
    batch, rows, columns = x.shape
    if (isinstance(rows, int) and rows % taps) or columns != places:
        raise call.node.error(
            f"its columns {[rows, columns]} aren't windows of {[*size]} at {[*counts]} places"
        )
    planes = batch * (rows // taps)
    kernel = kernel_of(columns_added, planes, extents, counts, windows, dtype=x.dtype)
    return reshaped(kernel(x.reshape(planes, taps, places)), batch, rows // taps, *extents)
