"""Operators whose number of results is data: NonZero, Compress and NonMaxSuppression.

If the inputs are known while a program is traced, so is the result. Otherwise kernels pack the selected elements into
memory for the largest result, and count them (`Counted`).
"""

from __future__ import annotations

from math import prod

import numpy as np

import taskc as tc
from taskc import f32, i64
from taskc.kernels.indices import gathering, inside, nonzero, place_of, suppression
from taskc.operators.call import Call, Made, operator
from taskc.operators.operands import kernel_of, spliced
from taskc.operators.tensors import Counted, computed, handle_of
from taskc.programs.tracing import Computed, Element, TensorHandle


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
    axis = call.axis_of(axis, len(x.shape))
    extent, (flag_count,) = x.shape[axis], flags.shape
    is_sized = isinstance(extent, int) and isinstance(flag_count, int)
    if is_sized and flag_count > extent:
        raise call.node.error(f"it has {flag_count} flags for {extent} elements")
    listed = None
    if isinstance(flags, TensorHandle):
        listed = _places(flags)
        places = listed.handle.reshape(flag_count)
    else:
        places = handle_of(np.flatnonzero(flags).astype(np.int64))
    place_in = inside if is_sized else place_of

    def value(*at: Element) -> Computed:
        place = place_in(places[at[axis]], extent)
        return x[spliced(at, axis, axis + 1, (place,))]

    shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
    y = computed(shape, tc.function(value), call.name)
    return y if listed is None else Counted(y, listed.count, axis)


def _places(x: TensorHandle) -> Counted:
    """The indices of all nonzero elements, a column for each, in order."""
    rank, size = len(x.shape), prod(x.shape)
    places = computed((rank, size), lambda axis, n: i64(0))
    count = kernel_of(nonzero, x.shape, dtype=x.dtype)(x.reshape(size), places)
    return Counted(places, count, 1)


@operator("NonMaxSuppression", since=10, ranks=(3, 3))
def non_max_suppression(call: Call) -> Made:
    boxes, scores, _, overlap, least = call.tensors(5)
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
    choose = kernel_of(
        suppression, batches, scores.shape[1], count, most, has_least=least is not None
    )
    given = (edges, scores.reshape(rows, count), limit, _number(least, 0.0))
    counts = choose(*given, left, chosen)
    made = computed((rows * most, 3), lambda n, part: i64(0))
    total = kernel_of(gathering, rows, most, scores.shape[1])(chosen, counts, made)
    return Counted(made, total, 0)


def _number(x: TensorHandle | None, otherwise: float) -> TensorHandle:
    if x is None:
        return computed((1,), lambda n: f32(otherwise))
    return x.reshape(1)


def _edges(boxes: TensorHandle, is_centered: bool) -> TensorHandle:
    """The lower ends of each box along both axes, and then the upper ends."""
    batches, count, _ = boxes.shape

    @tc.function
    def end(b: Element, edge: Element, n: Element) -> Computed:
        one, other = boxes[b, n, edge % 2], boxes[b, n, edge % 2 + 2]
        if is_centered:
            return one - other / 2 if edge < 2 else one + other / 2
        else:
            return min(one, other) if edge < 2 else max(one, other)

    return computed((batches, 4, count), end)
