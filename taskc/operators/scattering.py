"""Operators that write elements at places that are data: ScatterElements, ScatterND, TensorScatter, MaxUnpool.

Col2Im: windows, a column for each, added up where they overlap.
"""

from __future__ import annotations

from math import prod
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, boolean, i64, spatial
from taskc.kernels.signatures import wide
from taskc.operators.call import Call, Made, Tensor, at_least, operator
from taskc.operators.movement import check_lines, place_of
from taskc.operators.operands import are_equal, axis_of, reshaped, spliced, template, tensors
from taskc.operators.windows import Windows, spatial as spatial_of, windows_of

_WIDTH = 16  # elements of a slice that ScatterND writes at once

_REDUCTIONS: dict[str, Any] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": lambda old, new: min(old, new),
    "max": lambda old, new: max(old, new),
}


def _reduction(call: Call) -> Any:
    name = call.attribute("reduction", "none")
    if name not in _REDUCTIONS:
        raise call.node.error(f"taskc doesn't know its reduction '{name}'")
    return tc.function(_REDUCTIONS[name])


@operator("Scatter", since=9)
@operator("ScatterElements", since=11)
def scatter_elements(call: Call) -> Made:
    call.require_kernel()
    x, places, updates = (call.tensor(position) for position in range(3))
    axis = axis_of(call, call.attribute("axis", 0), len(x.shape))
    check_lines(call, axis)
    result = tc.compute(x.shape, lambda *at: x[at], name="copy")
    if prod(places.shape):
        kernel = _along(axis, x, places, _reduction(call), _problem(call))
        kernel(places, updates, result)
    return result  # type: ignore[return-value]


def _problem(call: Call) -> str:
    """The error when the model runs and an index is out of bounds."""
    return f"{call.node.title}: its indices are within the extents of '{call.node.inputs[0]}'"


def _along(axis: int, x: Any, places: Any, combined: Any, problem: str) -> KernelDefinition:
    """Each line of updates along the axis goes into one line of the result, in order."""
    whole, kind, given = x.shape, x.dtype, places.dtype
    shape = places.shape
    columns = tuple(1 if n == axis else extent for n, extent in enumerate(shape))
    ones, count, extent = (1,) * len(shape), shape[axis], whole[axis]

    @tc.kernel(workers=1)
    def scatter_elements(places: given[shape], updates: kind[shape], y: tc.inout[kind[whole]]):
        for (*column,) in tc.tiles(columns, by=ones):
            for k in range(count):
                for _ in spatial(1):
                    at = (*column[:axis], k, *column[axis + 1 :])
                    place = place_of(places[at].to(tc.i64), extent)
                    assert 0 <= place < extent, problem
                    to = (*column[:axis], place, *column[axis + 1 :])
                    y[to] = combined(y[to], updates[at])

    return scatter_elements


@operator("ScatterND", since=11, ranks=(None, at_least(1)))
def scatter_nd(call: Call) -> Made:
    call.require_kernel()
    x, places, updates = (call.tensor(position) for position in range(3))
    depth = places.shape[-1]
    count, inner = prod(places.shape[:-1]), prod(x.shape[depth:])
    result: Any = tc.compute(x.shape, lambda *at: x[at], name="copy")
    if prod(updates.shape):
        lines = result.reshape(*x.shape[:depth], inner)
        kernel = _slices(lines, places.dtype, (count, depth), _reduction(call), _problem(call))
        kernel(places.reshape(count, depth), updates.reshape(count, inner), lines)
    return result  # type: ignore[no-any-return]


def _slices(
    lines: Any, given: Any, shape: tuple[int, int], combined: Any, problem: str
) -> KernelDefinition:
    """Write slices one after another, in the order of the updates; a block has some elements of each slice."""
    (count, depth), whole, kind = shape, lines.shape, lines.dtype
    inner = whole[-1]

    @tc.kernel(workers=_WIDTH)
    def scatter_slices(
        places: given[count, depth], updates: kind[count, inner], y: tc.inout[kind[whole]]
    ):
        for (first,) in tc.tiles((inner,), by=(_WIDTH,)):
            for k in range(count):
                for i in spatial(_WIDTH):
                    if first + i < inner:
                        place = tuple(
                            place_of(places[k, n].to(tc.i64), whole[n]) for n in range(depth)
                        )
                        assert all(0 <= place[n] < whole[n] for n in range(depth)), problem
                        to = (*place, first + i)
                        y[to] = combined(y[to], updates[k, first + i])

    return scatter_slices


@operator("TensorScatter", since=24, ranks=(None, None, 1))
def tensor_scatter(call: Call) -> Made:
    """A cache with an update along an axis; each element of the batch has its own start."""
    call.require_kernel()
    past, update = call.tensor(0), call.tensor(1)
    rank, mode = len(past.shape), call.attribute("mode", "linear")
    axis = axis_of(call, call.attribute("axis", -2), rank)
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

    def value(*at):
        behind = at[axis] - (0 if first is None else first[at[0]])
        place = behind % most if is_circular else behind
        return update[spliced(at, axis, axis + 1, (place,))] if 0 <= place < count else past[at]

    return call.compute(past.shape, tc.function(value))


def _starts(call: Call, shape: tuple[Any, ...], axis: int, is_circular: bool) -> Any:
    """The start of each update as i64; checked to be in bounds unless places wrap around."""
    given = call.tensor(2)
    if is_circular:
        return tc.compute(given.shape, lambda b: given[b].to(i64))
    problem = f"{call.node.title}: its update ends within '{call.node.inputs[0]}'"
    most = shape[axis] - call.shape(1)[axis]
    return _check_starts(given.dtype, given.shape[0], most, problem)(given)


def _check_starts(kind: Any, batch: Any, most: Any, problem: str) -> KernelDefinition:
    @tc.kernel(workers=1)
    def check_starts(given: kind[batch], first: tc.out[i64[batch]]):
        for b in tc.tiles(batch, by=1):
            for _ in spatial(1):
                start = given[b].to(i64)
                assert 0 <= start <= most, problem
                first[b] = start

    return check_starts


@operator("MaxUnpool", since=9)
def max_unpool(call: Call) -> Made:
    """Zeros, with each number at the place where MaxPool found it, counted through MaxPool's input."""
    call.require_kernel()
    x, places = call.tensor(0), call.tensor(1)
    if len(places.shape) != len(x.shape) or not all(map(are_equal, places.shape, x.shape)):
        raise call.node.error(f"it has places {[*places.shape]} for numbers {[*x.shape]}")
    extents = spatial_of(call, x.shape)
    windows = windows_of(call, extents, tuple(call.attribute("kernel_shape")))
    axes = zip(extents, windows.stride, windows.before, windows.behind, windows.size, strict=True)
    made = [(n - 1) * step - low - high + taps for n, step, low, high, taps in axes]
    planes, count, volume = prod(x.shape[:2]), prod(extents), prod(made)
    dtype = x.dtype
    y: Any = tc.compute((planes, volume), lambda plane, n: dtype(0), name="zeros")
    if prod(x.shape):
        kernel = _into_planes(x.dtype, (planes, count, volume), _problem_of_planes(call))
        kernel(x.reshape(planes, count), places.reshape(planes, count), y)
    whole = y.reshape(*x.shape[:2], *made)
    return _with_zeros(call, whole) if call.has(2) else whole


def _problem_of_planes(call: Call) -> str:
    return f"{call.node.title}: each of its places is in the channel of its number"


def _into_planes(kind: Any, shape: tuple[Any, Any, Any], problem: str) -> KernelDefinition:
    planes, count, volume = shape

    @tc.kernel(workers=1)
    def unpool(
        x: kind[planes, count], places: i64[planes, count], y: tc.inout[kind[planes, volume]]
    ):
        for plane in tc.tiles(planes, by=1):
            for n in range(count):
                for _ in spatial(1):
                    place = places[plane, n] - plane * volume
                    assert 0 <= place < volume, problem
                    y[plane, place] = x[plane, n]

    return unpool


def _with_zeros(call: Call, x: Any) -> Tensor:
    """The result padded with zeros to the shape that the model names."""
    shape = call.integers(2)
    if len(shape) != len(x.shape) or any(
        isinstance(extent, int) and isinstance(own, int) and extent < own
        for extent, own in zip(shape, x.shape, strict=True)
    ):
        raise call.node.error(f"what it makes, {[*x.shape]}, doesn't fit into {shape}")

    def value(*at):
        inside = all(i < extent for i, extent in zip(at, x.shape, strict=True))
        return x[at] if inside else 0

    return call.compute(shape, tc.function(value))


@operator("Col2Im", since=18)
def col2im(call: Call) -> Made:
    (x,) = tensors(call, 1)
    extents, size = tuple(call.integers(1)), tuple(call.integers(2))
    windows = windows_of(call, extents, size)
    axes = zip(
        extents, windows.before, windows.behind, windows.covered, windows.stride, strict=True
    )
    counts = tuple((n + low + high - covered) // step + 1 for n, low, high, covered, step in axes)
    taps, places = prod(size), prod(counts)
    if len(x.shape) != 3 or x.dtype is boolean:
        raise call.node.error(f"its columns are {x.dtype}{[*x.shape]}, and not numbers of 3 axes")
    batch, rows, columns = x.shape
    if (isinstance(rows, int) and rows % taps) or columns != places:
        raise call.node.error(
            f"its columns {[rows, columns]} aren't windows of {[*size]} at {[*counts]} places"
        )
    planes = batch * (rows // taps)
    kernel = _columns(planes, extents, counts, windows, dtype=x.dtype)
    return reshaped(kernel(x.reshape(planes, taps, places)), batch, rows // taps, *extents)


def _make_columns(
    planes: Any, extents: tuple[Any, ...], counts: tuple[Any, ...], windows: Windows,
    *, dtype: DType, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    """Sum, for each element, the entries of all windows that cover it."""
    total, axes = wide(dtype), range(len(extents))
    own = spatial(machine.of(total).lanes)
    taps, places, volume = prod(windows.size), prod(counts), prod(extents)
    strides = [prod(extents[axis + 1 :]) for axis in axes]
    steps = [prod(windows.size[axis + 1 :]) for axis in axes]

    @tc.function
    def distance(n, tap):
        """How far an element lies behind the first tap of the first window, for each axis, less its own tap."""
        return tuple(
            n // strides[axis] % extents[axis]
            + windows.before[axis]
            - tap // steps[axis] % windows.size[axis] * windows.dilation[axis]
            for axis in axes
        )

    @tc.function
    def place(parts):
        """The window of a number for each axis, counted through all."""
        found = 0
        for axis in tc.static(axes):
            found = found * counts[axis] + parts[axis] // windows.stride[axis]
        return min(max(found, 0), places - 1)

    @tc.kernel(workers=own.workers)
    def columns(x: dtype[planes, taps, places], y: tc.out[dtype[planes, volume]]):
        for plane, first in tc.tiles((planes, volume), by=(1, own.workers)):
            sums = tc.tile(total, own, 0)
            for tap in range(taps):
                for j in own:
                    parts = distance(first + j, tap)
                    is_seen = all(
                        parts[axis] >= 0
                        and parts[axis] % windows.stride[axis] == 0
                        and parts[axis] // windows.stride[axis] < counts[axis]
                        for axis in axes
                    )
                    if first + j < volume and is_seen:
                        sums[j] += x[plane, tap, place(parts)].to(total)
            for j in own:
                if first + j < volume:
                    y[plane, first + j] = sums[j].to(dtype)

    return columns


_columns = template(_make_columns)
