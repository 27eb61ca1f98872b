"""Operators that move elements to places known while a program is traced, or named by other elements.

Pad, with all of its modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

import taskc as tc
from taskc import boolean
from taskc.kernels.indices import append, append_each, inside, place_of
from taskc.lang.sizes import Size
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.graph import Array
from taskc.operators.operands import are_equal, element, kernel_of, ones, spliced
from taskc.operators.tensors import (
    Blocked,
    Extent,
    Function,
    Held,
    State,
    Tensor,
    computed,
    elements_of,
    like,
    reshaped,
    rows_of,
)
from taskc.programs.tracing import Computed, Element, TensorHandle


def transposed(x: TensorHandle, order: Sequence[int], name: str | None = None) -> TensorHandle:
    """The tensor with its axes in another order."""
    place = tuple([order.index(axis) for axis in range(len(order))])
    shape = [x.shape[axis] for axis in order]
    return computed(shape, lambda *at: x[tuple(at[axis] for axis in place)], name)


@operator("Transpose")
def transpose(call: Call) -> Made:
    rank = len(call.shape(0))
    order = call.axes_of(call.attribute("perm") or range(rank)[::-1], rank)
    if len(order) != rank:
        raise call.node.error(f"its attribute 'perm' has {len(order)} axes, and the input {rank}")
    source = call.given(0)
    if call.by_python and isinstance(source, np.ndarray):
        turned: Array = source.transpose(order).copy()
        return turned
    return transposed(call.tensor(0), order, call.name)


@operator("Expand")
def expand(call: Call) -> Made:
    x = call.tensor(0)
    shape, once = call.broadcast(x.shape, call.integers(1)), ones(x.shape)
    return call.compute(shape, lambda *at: element(x, once, at))


@operator("Tile")
def tile(call: Call) -> Made:
    x, repeats = call.tensor(0), call.integers(1)
    if len(repeats) != len(x.shape):
        raise call.node.error(f"it has {len(repeats)} repeats of {len(x.shape)} axes")
    shape = [extent * times for extent, times in zip(x.shape, repeats, strict=True)]
    return call.compute(
        shape, lambda *at: x[tuple(i % n for i, n in zip(at, x.shape, strict=True))]
    )


# Parts and wholes.

_Joined = TypeVar("_Joined")
_MOST_JOINED = 16  # tensors that one computation reads


@operator("Concat")
def concat(call: Call) -> Held:
    if len(call.inputs) == 1 and isinstance(call.inputs[0], State):
        return call.inputs[0]
    if len(call.inputs) == 2 and isinstance(call.inputs[0], State):
        return appended(call, 0, call.tensor(1), call.attribute("axis"))
    parts: list[Any] = [call.images(position) for position in range(len(call.inputs))]
    rank = len(parts[0].shape)
    axis = call.axis_of(call.attribute("axis"), rank)
    shape = [*parts[0].shape]
    for part in parts[1:]:
        others = zip(shape[:axis] + shape[axis + 1 :], _without(part.shape, axis), strict=False)
        if len(part.shape) != rank or not all(are_equal(one, other) for one, other in others):
            raise call.node.error(f"{shape} and {[*part.shape]} can't be joined along axis {axis}")
        shape[axis] = shape[axis] + part.shape[axis]
    nonempty = [part for part in parts if not are_equal(part.shape[axis], 0)] or parts[:1]
    if axis == 0 or not all(isinstance(part, Blocked) for part in nonempty):
        return joined([rows_of(part) for part in nonempty], axis, call.compute)
    first = nonempty[0]
    return joined(
        nonempty, axis, lambda shape, value: like(first, first.dtype, value, call.name, shape)
    )


def _without(shape: Sequence[Extent], axis: int) -> list[Extent]:
    return [*shape[:axis], *shape[axis + 1 :]]


def joined(parts: Sequence[Any], axis: int, compute: Callable[..., _Joined]) -> _Joined:
    """Tensors concatenated along an axis; many of them are concatenated in groups first."""
    while len(parts) > _MOST_JOINED:
        groups = [parts[n : n + _MOST_JOINED] for n in range(0, len(parts), _MOST_JOINED)]
        parts = [joined(group, axis, compute) for group in groups]
    extent = sum(part.shape[axis] for part in parts)
    value = _one_of(parts, axis, 0)
    shape = (*parts[0].shape[:axis], extent, *parts[0].shape[axis + 1 :])
    return compute(shape, tc.function(lambda *at: value(at)))


def _one_of(parts: Sequence[Any], axis: int, start: Extent) -> Function:
    """The element of some concatenated tensors, of which the first begins at `start`."""
    if len(parts) == 1:
        read = elements_of(parts[0])
        return tc.function(lambda at: read[spliced(at, axis, axis + 1, (at[axis] - start,))])
    middle = len(parts) // 2
    bound = start + sum(part.shape[axis] for part in parts[:middle])
    before, behind = _one_of(parts[:middle], axis, start), _one_of(parts[middle:], axis, bound)
    return tc.function(lambda at: before(at) if at[axis] < bound else behind(at))


def appended(
    call: Call, position: int, new: TensorHandle, axis: int, start: Function | None = None
) -> TensorHandle | State:
    """An input with a tensor after it along an axis; a state's memory is written in place.

    start  where the new rows of each batch begin in a state, if that isn't its length
    """
    state = call.inputs[position]
    if not isinstance(state, State) or state.axis != axis % len(state.shape):
        return joined([call.tensor(position), new], axis, computed)
    memory, axis = state.memory, state.axis
    lines, step = prod(memory.shape[:axis]), prod(memory.shape[axis + 1 :])
    count, room = new.shape[axis] * step, memory.shape[axis] * step
    if not all(map(are_equal, _without(new.shape, axis), _without(memory.shape, axis))):
        raise call.node.error(f"{[*new.shape]} doesn't fit behind {[*state.shape]}")
    places = memory.shape[axis]
    problem = (
        f"the model's states have room for {places} places, their capacity, and these are more"
    )
    length = state.length + new.shape[axis]
    if start is None:
        kernel = kernel_of(append, lines, count, room, problem, dtype=state.dtype)
        kernel(reshaped(new, lines, count), state.length * step, reshaped(memory, lines, room))
        return State(memory, axis, length)
    batches, heads = memory.shape[0], prod(memory.shape[1:axis])
    starts = computed((batches,), lambda b: start(b) * step)
    problem = f"{problem}, or a sequence is shorter than its new rows"
    kernel = kernel_of(append_each, batches, heads, count, room, problem, dtype=state.dtype)
    rows, lines_of_batch = (batches, heads, count), (batches, heads, room)
    kernel(reshaped(new, *rows), starts, length * step, reshaped(memory, *lines_of_batch))
    return State(memory, axis, length)


def strided(
    call: Call,
    x: TensorHandle,
    starts: Sequence[Extent],
    steps: Sequence[Extent],
    shape: Sequence[Extent],
) -> Tensor:
    """A part of a tensor: every `step`th element from a start on, along each axis."""
    first, by = tuple(starts), tuple(steps)
    return call.compute(
        shape, lambda *at: x[tuple(s + i * n for i, s, n in zip(at, first, by, strict=True))]
    )


@operator("Split")
def split(call: Call) -> Made:
    x = call.tensor(0)
    axis = call.axis(len(x.shape), 0)
    extent, count = x.shape[axis], len(call.node.outputs)
    lengths = call.attribute("split") if call.node.version < 13 else None
    if call.has(1):
        lengths = call.integers(1)
    if lengths is None:
        number = call.count("num_outputs", count)
        if isinstance(extent, int) and number > max(extent, count):
            raise call.node.error(f"{extent} elements aren't {number} parts")
        if call.node.version < 18 and extent % number != 0:
            raise call.node.error(f"{extent} elements aren't {number} equal parts")
        size = tc.cdiv(extent, number)
        lengths = [size] * (number - 1) + [extent - size * (number - 1)]
    negative = any(isinstance(length, int) and length < 0 for length in lengths)
    if negative or not are_equal(sum(lengths), extent) or len(lengths) < count:
        raise call.node.error(f"the parts {lengths} aren't the {extent} elements along axis {axis}")
    outputs: list[Tensor] = []
    for number, length in enumerate(lengths[:count]):
        starts = [sum(lengths[:number]) if n == axis else 0 for n in range(len(x.shape))]
        shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
        outputs.append(strided(call, x, starts, [1] * len(shape), shape))
    return tuple(outputs)


@operator("Slice")
def slice_by_attributes(call: Call) -> Made:
    starts, ends = call.attribute("starts"), call.attribute("ends")
    axes = call.attribute("axes") or range(len(starts))
    return _sliced(call, starts, ends, axes, [1] * len(starts))


@operator("Slice", since=10)
def slice_(call: Call) -> Made:
    starts, ends = call.integers(1), call.integers(2)
    axes = call.integers(3) if call.has(3) else range(len(starts))
    steps = [1] * len(starts)
    if call.has(4):
        steps = [call.number(step, "its step") for step in call.integers(4)]
    return _sliced(call, starts, ends, axes, steps)


def _sliced(
    call: Call,
    starts: Sequence[Extent],
    ends: Sequence[Extent],
    axes: Sequence[Extent],
    steps: Sequence[int],
) -> Tensor:
    x = call.tensor(0)
    rank = len(x.shape)
    shape, by = [*x.shape], [1] * rank
    first: list[Extent] = [0] * rank
    named = call.axes_of(axes, rank)
    if not len(starts) == len(ends) == len(named) == len(steps):
        raise call.node.error("its starts, ends, axes and steps aren't of one length")
    for axis, start, end, step in zip(named, starts, ends, steps, strict=True):
        if step == 0:
            raise call.node.error("its step is 0")
        first[axis], shape[axis] = _range(start, end, step, x.shape[axis])
        by[axis] = step
    return strided(call, x, first, by, shape)


_FAR = 1 << 31  # an end that stands for the last element


def _range(start: Extent, end: Extent, step: int, extent: Extent) -> tuple[Extent, Extent]:
    """The first index of a slice, and its number of elements.

    Unlike in Python, a backwards slice that starts before the first element starts at that element.
    """
    if all(isinstance(n, int) for n in (start, end, extent)):
        if step < 0:
            start = max(start, -extent)
        places = range(*slice(start, end, step).indices(extent))
        return places.start, len(places)
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    start, end = _end(start, extent, max(low, 0), high), _end(end, extent, low, high)
    span = end - start if step > 0 else start - end
    return start, tc.cdiv(span, abs(step)) if span > 0 else 0


def _end(at: Extent, extent: Extent, low: Extent, high: Extent) -> Extent:
    """The start or end of a slice, clamped to its axis."""
    if isinstance(at, int) and abs(at) >= _FAR:
        return high if at > 0 else low
    at = at + extent if at < 0 else at
    if at < low:
        return low
    return high if at > high else at


# Elements that other elements name.


@tc.function
def _place_inside(index: Element, extent: Element) -> Computed:
    return inside(place_of(index, extent), extent)


def _checked_places(call: Call, position: int, extents: Sequence[Extent]) -> Function:
    """The function from an index in an input and an extent to the element's place.

    Known indices are checked now: along their last axis, there is one for each of these extents.
    """
    indices = call.inputs[position]
    if isinstance(indices, TensorHandle) or not all(isinstance(extent, int) for extent in extents):
        return place_of
    for number, index in enumerate(call.integers(position)):
        extent = extents[number % len(extents)]
        if not isinstance(index, int):
            return place_of
        if not -extent <= index < extent:
            raise call.node.error(f"there is no element {index} of {extent}")
    return _place_inside


@operator("Gather")
def gather(call: Call) -> Made:
    x, places = call.tensor(0), call.tensor(1)
    axis = call.axis(len(x.shape), 0)
    extent, behind = x.shape[axis], axis + len(places.shape)
    place_in = _checked_places(call, 1, [extent])
    shape = [*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]]
    known = call.inputs[1]
    if places.shape == () and not isinstance(known, TensorHandle):
        (index,) = call.integers(1)
        at_once = index + extent if index < 0 else index
        return call.compute(shape, lambda *at: x[spliced(at, axis, axis, (at_once,))])
    by_python = call.by_python

    def value(*at: Element) -> Computed:
        index = places[at[axis:behind]]
        place = place_in(index if by_python else index.to(tc.i64), extent)
        return x[spliced(at, axis, behind, (place,))]

    return call.compute(shape, tc.function(value))


def check_lines(call: Call, axis: int) -> None:
    """Check that the indices cover no more lines than there are, along each axis but one."""
    whole, indexed = call.shape(0), call.shape(1)
    fits = [
        n == axis or not isinstance(extent, int) or not isinstance(most, int) or extent <= most
        for n, (extent, most) in enumerate(zip(indexed, whole, strict=False))
    ]
    if len(indexed) != len(whole) or not all(fits):
        raise call.node.error(
            f"its indices {list(indexed)} have other lines along axis {axis} than {list(whole)}"
        )


@operator("GatherElements", since=11)
def gather_elements(call: Call) -> Made:
    call.require_kernel()
    x, places = call.tensor(0), call.tensor(1)
    axis = call.axis(len(x.shape), 0)
    check_lines(call, axis)
    extent = x.shape[axis]
    place_in = _checked_places(call, 1, [extent])

    def value(*at: Element) -> Computed:
        place = place_in(places[at].to(tc.i64), extent)
        return x[spliced(at, axis, axis + 1, (place,))]

    return call.compute(places.shape, tc.function(value))


@operator("GatherND", since=11, ranks=(None, at_least(1)))
def gather_nd(call: Call) -> Made:
    call.require_kernel()
    x, places = call.tensor(0), call.tensor(1)
    batch, count, outer = call.attribute("batch_dims", 0), places.shape[-1], len(places.shape) - 1
    if not isinstance(count, int) or not 0 <= batch <= len(x.shape) - count:
        raise call.node.error(
            f"its indices are of {count} axes behind the first {batch}, and x has {len(x.shape)}"
        )
    named = tuple(x.shape[batch : batch + count])
    place_in = _checked_places(call, 1, named)

    def value(*at: Element) -> Computed:
        parts = tuple(
            place_in(places[spliced(at, outer, len(at), (n,))].to(tc.i64), extent)
            for n, extent in enumerate(named)
        )
        return x[spliced(at, batch, outer, parts)]

    return call.compute([*places.shape[:-1], *x.shape[batch + count :]], tc.function(value))


@operator("ReverseSequence", since=10)
def reverse_sequence(call: Call) -> Made:
    call.require_kernel()
    x, lengths = call.tensor(0), call.tensor(1)
    time, batch = call.attribute("time_axis", 0), call.attribute("batch_axis", 1)

    def value(*at: Element) -> Computed:
        i, length = at[time], lengths[at[batch]]
        place = length.to(tc.i64) - 1 - i if i < length else i
        return x[tuple(place if axis == time else at[axis] for axis in range(len(at)))]

    return call.compute(x.shape, tc.function(value))


# Images.


@operator("DepthToSpace", ranks=(4,))
def depth_to_space(call: Call) -> Made:
    call.require_kernel()
    x, size = call.tensor(0), call.count("blocksize")
    n, c, h, w = x.shape
    if isinstance(c, int) and c % (size * size):
        raise call.node.error(f"{c} channels aren't blocks of {size} by {size}")
    depth = c // (size * size)
    is_depth_last = call.attribute("mode", "DCR") == "DCR"

    def value(b: Element, k: Element, i: Element, j: Element) -> Computed:
        by_blocks = (i % size * size + j % size) * depth + k
        by_depth = (k * size + i % size) * size + j % size
        return x[b, by_blocks if is_depth_last else by_depth, i // size, j // size]

    return call.compute((n, depth, h * size, w * size), tc.function(value))


@operator("SpaceToDepth", ranks=(4,))
def space_to_depth(call: Call) -> Made:
    call.require_kernel()
    x, size = call.tensor(0), call.count("blocksize")
    n, c, h, w = x.shape
    if any(isinstance(extent, int) and extent % size for extent in (h, w)):
        raise call.node.error(f"{h} by {w} elements aren't blocks of {size} by {size}")
    is_depth_last, blocks = call.attribute("mode", "DCR") == "DCR", size * size

    def value(b: Element, k: Element, i: Element, j: Element) -> Computed:
        block, channel = (k // c, k % c) if is_depth_last else (k % blocks, k // blocks)
        return x[b, channel, i * size + block // size, j * size + block % size]

    return call.compute((n, c * size * size, h // size, w // size), tc.function(value))


@operator("Pad")
def pad_by_attributes(call: Call) -> Made:
    call.require_kernel()
    dtype, number = call.dtype(0), call.attribute("value", 0.0)
    return _padded(call, call.attribute("pads"), tc.function(lambda: dtype(number)))


@operator("Pad", since=11)
def pad(call: Call) -> Made:
    call.require_kernel()
    x, pads = call.tensor(0), call.integers(1)
    dtype = x.dtype
    if call.has(3):
        axes = call.axes_of(call.integers(3), len(x.shape))
        half = len(axes)
        if len(pads) != 2 * half:
            raise call.node.error(f"it has {len(pads)} pads of {half} axes")
        whole: list[Extent] = [0] * (2 * len(x.shape))
        for number, axis in enumerate(axes):
            whole[axis], whole[axis + len(x.shape)] = pads[number], pads[number + half]
        pads = whole
    if not call.has(2):
        number = False if dtype is boolean else 0
        return _padded(call, pads, tc.function(lambda: dtype(number)))
    filler = call.tensor(2).reshape()
    return _padded(call, pads, tc.function(lambda: filler[()]))


def _padded(call: Call, pads: Sequence[Extent], filler: Function) -> Tensor:
    x = call.tensor(0)
    rank = len(x.shape)
    if len(pads) != 2 * rank:
        raise call.node.error(f"it has {len(pads)} pads of {rank} axes")
    before, behind, extents = pads[:rank], pads[rank:], x.shape
    shape = _whole(extents, before, behind)
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        raise call.node.error(f"its pads {list(pads)} leave less than nothing of {list(extents)}")
    mode = call.attribute("mode", "constant")
    if mode == "constant":
        return padded(x, before, behind, filler, call.name)
    if mode not in _PLACES:
        raise call.node.error(f"taskc doesn't know its mode '{mode}'")
    place_in = tc.function(_PLACES[mode])
    added, cut = tuple(_positive(n) for n in before), tuple(_positive(-n) for n in before)
    # Elements cropped by negative pads can't be repeated by the others.
    left = tuple(
        extent - first - _positive(-high)
        for extent, first, high in zip(extents, cut, behind, strict=True)
    )
    for extent, whole in zip(left, shape, strict=True):
        if isinstance(extent, int) and extent < 1 and not are_equal(whole, 0):
            raise call.node.error(f"there is nothing that its mode '{mode}' could repeat")

    def value(*at: Element) -> Computed:
        return x[
            tuple(
                place_in(i - low, extent) + first
                for i, low, extent, first in zip(at, added, left, cut, strict=True)
            )
        ]

    return call.compute(shape, tc.function(value))


def _whole(
    extents: Sequence[Extent], before: Sequence[Extent], behind: Sequence[Extent]
) -> list[Extent]:
    return [n + low + high for n, low, high in zip(extents, before, behind, strict=True)]


def padded(
    x: TensorHandle,
    before: Sequence[Extent],
    behind: Sequence[Extent],
    filler: Function,
    name: str | None = None,
) -> TensorHandle:
    """The tensor with so many elements more, or fewer, at the ends of each axis."""
    first, extents = tuple(before), x.shape

    @tc.function
    def value(*at: Element) -> Computed:
        place = tuple(i - low for i, low in zip(at, first, strict=True))
        is_inside = all(i >= 0 and i < extent for i, extent in zip(place, extents, strict=True))
        return x[place] if is_inside else filler()

    return computed(_whole(extents, before, behind), value, name)


def _positive(number: Extent) -> Extent:
    return number if isinstance(number, Size) else max(number, 0)


@tc.function
def _reflected(i: Element, extent: Element) -> Computed:
    """The index reflected at both ends, without repeating them."""
    period = max(2 * (extent - 1), 1)
    return min(max(min(i % period, period - i % period), 0), extent - 1)


_PLACES: dict[str, Function] = {
    "edge": lambda i, extent: min(max(i, 0), extent - 1),
    "reflect": lambda i, extent: _reflected(i, extent),
    "wrap": lambda i, extent: i % extent,
}
