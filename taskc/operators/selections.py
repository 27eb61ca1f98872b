"""Operators whose number of results is data: NonZero, Compress and NonMaxSuppression.

If the inputs are known while a program is traced, so is the result. Otherwise kernels pack the selected elements into
memory for the largest result, and count them (`Counted`).
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

import numpy as np

import taskc as tc
from taskc import DType, KernelDefinition, boolean, f32, i64, spatial
from taskc.operators.call import Call, Counted, Made, operator
from taskc.operators.movement import inside, place_of
from taskc.operators.operands import Extent, axis_of, computed, spliced, template, tensors
from taskc.programs.tracing import TensorHandle


@operator("NonZero", since=9)
def non_zero(call: Call) -> Made:
    x = call.given(0)
    if isinstance(x, TensorHandle):
        return _places(x)
    places = [at for at in np.ndindex(x.shape) if x[at]]
    indices = np.empty((x.ndim, len(places)), np.int64)
    for number, at in enumerate(places):
        indices[:, number] = at
    return indices


@operator("Compress", since=9, ranks=(None, 1))
def compress(call: Call) -> Made:
    call.require_kernel()
    x, axis, flags = call.tensor(0), call.attribute("axis"), call.given(1)
    if axis is None:
        x, axis = x.reshape(prod(x.shape)), 0
    axis = axis_of(call, axis, len(x.shape))
    extent, (flag_count,) = x.shape[axis], flags.shape
    is_sized = isinstance(extent, int) and isinstance(flag_count, int)
    if is_sized and flag_count > extent:
        raise call.node.error(f"it has {flag_count} flags for {extent} elements")
    listed = _places(flags) if isinstance(flags, TensorHandle) else None
    if listed is None:
        selected = np.flatnonzero(flags).astype(np.int64)
        places, length = tc.constant(selected), len(selected)
    else:
        places, length = cast("Any", listed.handle.reshape(flag_count)), flag_count
    place_in = inside if is_sized else place_of

    def value(*at):
        place = place_in(places[at[axis]], extent)
        return x[spliced(at, axis, axis + 1, (place,))]

    made = call.compute((*x.shape[:axis], length, *x.shape[axis + 1 :]), tc.function(value))
    return made if listed is None else Counted(cast("TensorHandle", made), listed.count, axis)


def _places(x: TensorHandle) -> Counted:
    """The indices of all nonzero elements, a column for each, in order."""
    rank, size = len(x.shape), prod(x.shape)
    places = computed((rank, size), lambda axis, n: i64(0))
    count = _nonzero(x.shape, dtype=x.dtype)(x.reshape(size), places)
    return Counted(places, count, 1)


def _make_nonzero(
    shape: tuple[Extent, ...], *, dtype: DType, machine: tc.Machine
) -> KernelDefinition:
    size, axes = prod(shape), range(len(shape))
    strides = [prod(shape[axis + 1 :]) for axis in axes]
    none = False if dtype is boolean else 0

    @tc.kernel(workers=1)
    def nonzero(x: dtype[size], places: tc.inout[i64[len(axes), size]], count: tc.out[i64[1]]):
        for _ in spatial(1):
            found = i64(0)
            for n in range(size):
                if x[n] != none and 0 <= found < size:
                    for axis in tc.static(axes):
                        places[axis, found] = n // strides[axis] % shape[axis]
                    found += 1
            count[0] = found

    return nonzero


_nonzero = template(_make_nonzero)


@operator("NonMaxSuppression", since=10, ranks=(3, 3))
def non_max_suppression(call: Call) -> Made:
    boxes, scores, _, overlap, least = tensors(call, 5)
    batches, count, corners = boxes.shape
    if corners != 4 or len(scores.shape) != 3:
        raise call.node.error(
            f"its boxes are {list(boxes.shape)}, and its scores {list(scores.shape)}"
        )
    rows = batches * scores.shape[1]
    most = min(max(call.single(2), 0), count) if call.has(2) else 0
    if not most or not rows:
        return np.zeros((0, 3), np.int64)
    edges = _edges(boxes, bool(call.attribute("center_point_box", 0)))
    limit = _number(overlap, 0.0)
    left = computed((rows, count), lambda row, n: i64(0))
    chosen = computed((rows, most), lambda row, n: i64(0))
    choose = _suppression(batches, scores.shape[1], count, most, has_least=least is not None)
    given = (edges, scores.reshape(rows, count), limit, _number(least, 0.0))
    counts = choose(*given, left, chosen)
    made = computed((rows * most, 3), lambda n, part: i64(0))
    total = _gathering(rows, most, scores.shape[1])(chosen, counts, made)
    return Counted(made, total, 0)


def _number(x: TensorHandle | None, otherwise: float) -> TensorHandle:
    if x is None:
        return computed((1,), lambda n: f32(otherwise))
    return cast("TensorHandle", x.reshape(1))


def _edges(boxes: TensorHandle, is_centered: bool) -> TensorHandle:
    """The lower ends of each box along both axes, and then the upper ends."""
    batches, count, _ = boxes.shape
    if is_centered:
        return computed(
            (batches, 4, count),
            lambda b, edge, n: (
                boxes[b, n, edge % 2] - boxes[b, n, edge % 2 + 2] / 2
                if edge < 2
                else boxes[b, n, edge % 2] + boxes[b, n, edge % 2 + 2] / 2
            ),
        )
    return computed(
        (batches, 4, count),
        lambda b, edge, n: (
            min(boxes[b, n, edge % 2], boxes[b, n, edge % 2 + 2])
            if edge < 2
            else max(boxes[b, n, edge % 2], boxes[b, n, edge % 2 + 2])
        ),
    )


def _make_suppression(
    batches: Extent, classes: Extent, count: Extent, most: Extent,
    *, has_least: bool, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    """For each class of each image, take the best remaining box if it overlaps none taken before.

    The remaining boxes are a heap: the children of place i are 2 * i + 1 and 2 * i + 2.
    """
    rows = batches * classes

    @tc.function
    def overlap(edges, b, n, q):
        high = min(edges[b, 2, n], edges[b, 2, q]) - max(edges[b, 0, n], edges[b, 0, q])
        wide = min(edges[b, 3, n], edges[b, 3, q]) - max(edges[b, 1, n], edges[b, 1, q])
        common = high * wide if high > 0 and wide > 0 else 0
        first = (edges[b, 2, n] - edges[b, 0, n]) * (edges[b, 3, n] - edges[b, 1, n])
        second = (edges[b, 2, q] - edges[b, 0, q]) * (edges[b, 3, q] - edges[b, 1, q])
        return common / (first + second - common) if common > 0 else 0

    @tc.function
    def comes_before(scores, row, n, q):
        return scores[row, n] > scores[row, q] or (scores[row, n] == scores[row, q] and n < q)

    @tc.function
    def sink(scores, left, row, box, place, size):
        """Insert a box at a place of the heap, or further down where it belongs."""
        hole, behind = place, 2 * place + 1
        while behind < size:
            found = inside(left[row, inside(behind, count)], count)
            if behind + 1 < size:
                other = inside(left[row, inside(behind + 1, count)], count)
                if comes_before(scores, row, other, found):
                    found = other
                    behind += 1
            if comes_before(scores, row, found, box):
                left[row, inside(hole, count)] = found
                hole = behind
                behind = 2 * behind + 1
            else:
                behind = size
        left[row, inside(hole, count)] = box

    @tc.kernel(workers=1)
    def suppression(
        edges: f32[batches, 4, count],
        scores: f32[rows, count],
        limit: f32[1],
        least: f32[1],
        left: tc.inout[i64[rows, count]],
        chosen: tc.inout[i64[rows, most]],
        counts: tc.out[i64[rows]],
    ):
        for row in tc.tiles(rows, by=1):
            for _ in spatial(1):
                b = row // classes
                size, taken = i64(0), i64(0)
                for n in range(count):
                    if not has_least or scores[row, n] > least[0]:
                        left[row, inside(size, count)] = n
                        size += 1
                for n in range(size // 2):
                    place = size // 2 - 1 - n
                    box = inside(left[row, inside(place, count)], count)
                    sink(scores, left, row, box, place, size)
                while size > 0 and 0 <= taken < most:
                    best = inside(left[row, 0], count)
                    size -= 1
                    last = inside(left[row, inside(size, count)], count)
                    sink(scores, left, row, last, i64(0), size)
                    is_free, t = True, i64(0)
                    while is_free and 0 <= t < taken and t < most:
                        is_free = overlap(edges, b, best, inside(chosen[row, t], count)) <= limit[0]
                        t += 1
                    if is_free:
                        chosen[row, taken] = best
                        taken += 1
                counts[row] = taken

    return suppression


_suppression = template(_make_suppression)


def _make_gathering(
    rows: Extent, most: Extent, classes: Extent, *, machine: tc.Machine
) -> KernelDefinition:
    """The boxes chosen in all rows, packed: image, class and box of each."""
    size = rows * most

    @tc.kernel(workers=1)
    def gathering(
        chosen: i64[rows, most],
        counts: i64[rows],
        made: tc.inout[i64[size, 3]],
        total: tc.out[i64[1]],
    ):
        for _ in spatial(1):
            found = i64(0)
            for row in range(rows):
                for t in range(counts[row]):
                    if t < most and 0 <= found < size:
                        made[found, 0] = row // classes
                        made[found, 1] = row % classes
                        made[found, 2] = chosen[row, t]
                        found += 1
            total[0] = found

    return gathering


_gathering = template(_make_gathering)
