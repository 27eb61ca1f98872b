"""Elements at places that are data: written there, or chosen and listed.

scatter_elements, scatter_slices, scatter_planes   write at places, one update after another
append                                             write after the elements that are there
write_part                                         write a part, at regular places along each axis
checked_starts                                     places where updates begin, checked to be in bounds
top_k, nonzero                                     the places of the largest elements, and of those that aren't 0
suppression, gathering                             the best boxes that don't overlap, and a list of them
"""

from __future__ import annotations

from math import prod

import taskc as tc
from taskc import DType, KernelDefinition, Machine, boolean, f32, i64, repeat, spatial
from taskc.kernels.signatures import Extent, Function
from taskc.programs.tracing import Computed, Element, TensorHandle

_WIDTH = 16  # elements of a slice that are written at once


@tc.function
def inside(index: Element, extent: Extent) -> Computed:
    """An index that is data, and known to be in bounds: the compiler needn't check it."""
    return min(max(index, 0), extent - 1)


@tc.function
def place_of(index: Element, extent: Extent) -> Computed:
    """An index that is data, and may count from the end. One out of bounds is an error when the model runs."""
    return index + extent if index < 0 else index


REDUCTIONS: dict[str, Function] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": lambda old, new: min(old, new),
    "max": lambda old, new: max(old, new),
}


def scatter_elements(
    axis: int, x: TensorHandle, places: TensorHandle, combined: Function, problem: str
) -> KernelDefinition:
    """Each line of updates along the axis goes into one line of the result, in order."""
    whole, kind, given = x.shape, x.dtype, places.dtype
    shape = places.shape
    columns = tuple(1 if n == axis else extent for n, extent in enumerate(shape))
    ones, count, extent = (1,) * len(shape), shape[axis], whole[axis]

    @tc.kernel(workers=1)
    def scatter_elements(
        places: tc.typed[given[shape]], updates: tc.typed[kind[shape]], y: tc.inout[kind[whole]]
    ) -> None:
        for (*column,) in tc.tiles(columns, by=ones):
            for k in range(count):
                for _ in spatial(1):
                    at = (*column[:axis], k, *column[axis + 1 :])
                    place = place_of(places[at].to(tc.i64), extent)
                    assert 0 <= place < extent, problem
                    to = (*column[:axis], place, *column[axis + 1 :])
                    y[to] = combined(y[to], updates[at])

    return scatter_elements


def scatter_slices(
    lines: TensorHandle, given: DType, shape: tuple[Extent, ...], combined: Function, problem: str
) -> KernelDefinition:
    """Write slices one after another, in the order of the updates; a block has some elements of each slice."""
    (count, depth), whole, kind = shape, lines.shape, lines.dtype
    inner = whole[-1]

    @tc.kernel(workers=_WIDTH)
    def scatter_slices(
        places: tc.typed[given[count, depth]],
        updates: tc.typed[kind[count, inner]],
        y: tc.inout[kind[whole]],
    ) -> None:
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


def append(
    lines: Extent, count: Extent, room: int, problem: str, *, dtype: DType, machine: Machine
) -> KernelDefinition:
    """Write elements into lines with room for more, from `start` on."""

    @tc.kernel(workers=_WIDTH)
    def append(
        new: tc.typed[dtype[lines, count]], start: i64, memory: tc.inout[dtype[lines, room]]
    ) -> None:
        for line, first in tc.tiles((lines, count), by=(1, _WIDTH)):
            assert 0 <= start <= room - count, problem
            for i in spatial(_WIDTH):
                if first + i < count:
                    memory[line, start + first + i] = new[line, first + i]

    return append


def append_each(
    batches: Extent,
    heads: Extent,
    count: int,
    room: int,
    problem: str,
    *,
    dtype: DType,
    machine: Machine,
) -> KernelDefinition:
    """Write elements into lines with room for more, from a start of each batch on; `end` is the most that is filled."""

    @tc.kernel(workers=_WIDTH)
    def append_each(
        new: tc.typed[dtype[batches, heads, count]],
        starts: i64[batches],
        end: i64,
        memory: tc.inout[dtype[batches, heads, room]],
    ) -> None:
        for b in tc.tiles(batches, by=1):
            start = starts[b]
            assert 0 <= start <= room - count, problem
            assert end <= room, problem
            for h in range(heads):
                for step in range(tc.cdiv(count, _WIDTH)):
                    for i in spatial(_WIDTH):
                        if step * _WIDTH + i < count:
                            place = start + step * _WIDTH + i
                            memory[b, h, place] = new[b, h, step * _WIDTH + i]

    return append_each


def write_part(
    whole: tuple[Extent, ...], shape: tuple[Extent, ...], along: tuple[tuple[int, int], ...],
    problem: str, *, dtype: DType, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """x[part] = y, in place; y has at least one axis.

    along  for each axis of x, the step of the part and the axis of y, or (0, -1) for a single place
    """
    *outer, inner = shape
    lines, block = tuple(outer), 4096 // dtype.bits * 4
    ones, own = (1,) * len(lines), repeat(block // _WIDTH) * spatial(_WIDTH)

    @tc.kernel(workers=_WIDTH)
    def write_part(
        y: tc.typed[dtype[shape]],
        firsts: tc.typed[(i64,) * len(whole)],
        x: tc.inout[dtype[whole]],
    ) -> None:
        for *line, start in tc.tiles((*lines, inner), by=(*ones, block)):
            assert all(
                0 <= first < extent
                if step == 0
                else 0 <= first <= extent - 1 - (shape[axis] - 1) * step
                if step > 0
                else -(shape[axis] - 1) * step <= first < extent
                for first, extent, (step, axis) in zip(firsts, whole, along, strict=True)
            ), problem
            for i in own:
                if start + i < inner:
                    at = (*line, start + i)
                    to = tuple(
                        first if step == 0 else first + at[axis] * step
                        for first, (step, axis) in zip(firsts, along, strict=True)
                    )
                    x[to] = y[at]

    return write_part


def checked_starts(kind: DType, batch: Extent, most: Extent, problem: str) -> KernelDefinition:
    @tc.kernel(workers=1)
    def check_starts(given: tc.typed[kind[batch]], first: tc.out[i64[batch]]) -> None:
        for b in tc.tiles(batch, by=1):
            for _ in spatial(1):
                start = given[b].to(i64)
                assert 0 <= start <= most, problem
                first[b] = start

    return check_starts


def scatter_planes(kind: DType, shape: tuple[Extent, ...], problem: str) -> KernelDefinition:
    planes, count, volume = shape

    @tc.kernel(workers=1)
    def unpool(
        x: tc.typed[kind[planes, count]],
        places: i64[planes, count],
        y: tc.inout[kind[planes, volume]],
    ) -> None:
        for plane in tc.tiles(planes, by=1):
            for n in range(count):
                for _ in spatial(1):
                    place = places[plane, n] - plane * volume
                    assert 0 <= place < volume, problem
                    y[plane, place] = x[plane, n]

    return unpool


def top_k(
    outer: Extent,
    extent: Extent,
    inner: Extent,
    count: int,
    *,
    dtype: DType,
    is_largest: bool,
    machine: Machine,
) -> KernelDefinition:
    """Keep the best so far in a heap with the worst first; a better element replaces it. Then sort the heap.

    Of equal numbers the first one is better, and NaN is larger than any number.
    """
    rows = outer * inner

    @tc.function
    def is_larger(a: Element, b: Element) -> Computed:
        return a > b or (a != a and b == b)

    @tc.function
    def is_better(a: Element, b: Element) -> Computed:
        return is_larger(a, b) if is_largest else is_larger(b, a)

    @tc.function
    def comes_before(a: Element, place: Element, b: Element, other: Element) -> Computed:
        return is_better(a, b) or (not is_better(b, a) and place < other)

    @tc.function
    def sink(
        values: Element,
        places: Element,
        row: Element,
        value: Element,
        place: Element,
        first: Element,
        size: Element,
    ) -> None:
        """Insert a number at a place of the heap, or further down where it belongs."""
        hole, behind = first, 2 * first + 1
        while behind < size:
            at = inside(behind, count)
            if behind + 1 < size:
                other = inside(behind + 1, count)
                if comes_before(
                    values[row, at], places[row, at], values[row, other], places[row, other]
                ):
                    at = other
            if comes_before(value, place, values[row, at], places[row, at]):
                values[row, inside(hole, count)] = values[row, at]
                places[row, inside(hole, count)] = places[row, at]
                hole = at
                behind = 2 * at + 1
            else:
                behind = size
        values[row, inside(hole, count)] = value
        places[row, inside(hole, count)] = place

    @tc.kernel(workers=1)
    def ranked(
        x: tc.typed[dtype[outer, extent, inner]],
        values: tc.inout[dtype[rows, count]],
        places: tc.inout[i64[rows, count]],
    ) -> None:
        for row in tc.tiles(rows, by=1):
            for _ in spatial(1):
                for q in range(count):
                    values[row, q] = x[row // inner, q, row % inner]
                    places[row, q] = q
                for n in range(count // 2):
                    first = count // 2 - 1 - n
                    sink(values, places, row, values[row, first], places[row, first], first, count)
                for q in range(count, extent):
                    found = x[row // inner, q, row % inner]
                    if is_better(found, values[row, 0]):
                        sink(values, places, row, found, q, 0, count)
                for n in range(count - 1):
                    last = count - 1 - n
                    value, place = values[row, last], places[row, last]
                    values[row, last] = values[row, 0]
                    places[row, last] = places[row, 0]
                    sink(values, places, row, value, place, 0, last)

    return ranked


def nonzero(shape: tuple[Extent, ...], *, dtype: DType, machine: Machine) -> KernelDefinition:
    size, axes = prod(shape), range(len(shape))
    strides = [prod(shape[axis + 1 :]) for axis in axes]
    none = False if dtype is boolean else 0

    @tc.kernel(workers=1)
    def nonzero(
        x: tc.typed[dtype[size]], places: tc.inout[i64[len(axes), size]], count: tc.out[i64[1]]
    ) -> None:
        for _ in spatial(1):
            found = i64(0)
            for n in range(size):
                if x[n] != none and 0 <= found < size:
                    for axis in tc.static(axes):
                        places[axis, found] = n // strides[axis] % shape[axis]
                    found += 1
            count[0] = found

    return nonzero


def suppression(
    batches: Extent, classes: Extent, count: Extent, most: Extent,
    *, has_least: bool, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """For each class of each image, take the best remaining box if it overlaps none taken before.

    The remaining boxes are a heap: the children of place i are 2 * i + 1 and 2 * i + 2.
    """
    rows = batches * classes

    @tc.function
    def overlap(edges: Element, b: Element, n: Element, q: Element) -> Computed:
        high = min(edges[b, 2, n], edges[b, 2, q]) - max(edges[b, 0, n], edges[b, 0, q])
        wide = min(edges[b, 3, n], edges[b, 3, q]) - max(edges[b, 1, n], edges[b, 1, q])
        common = high * wide if high > 0 and wide > 0 else 0
        first = (edges[b, 2, n] - edges[b, 0, n]) * (edges[b, 3, n] - edges[b, 1, n])
        second = (edges[b, 2, q] - edges[b, 0, q]) * (edges[b, 3, q] - edges[b, 1, q])
        return common / (first + second - common) if common > 0 else 0

    @tc.function
    def comes_before(scores: Element, row: Element, n: Element, q: Element) -> Computed:
        return scores[row, n] > scores[row, q] or (scores[row, n] == scores[row, q] and n < q)

    @tc.function
    def sink(
        scores: Element, left: Element, row: Element, box: Element, place: Element, size: Element
    ) -> None:
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
    ) -> None:
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


def gathering(rows: Extent, most: Extent, classes: Extent, *, machine: Machine) -> KernelDefinition:
    """The boxes chosen in all rows, packed: image, class and box of each."""
    size = rows * most

    @tc.kernel(workers=1)
    def gathering(
        chosen: i64[rows, most],
        counts: i64[rows],
        made: tc.inout[i64[size, 3]],
        total: tc.out[i64[1]],
    ) -> None:
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
