"""Row-major memory in two shapes: map an element's indices from one to the other.

x: f32[6, 4] as f32[24]:           at[t] is x[t // 4, t % 4]
x: f32[6, 4] as f32[3, 4] from 8:  at[i, j] is x[i + 2, j]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as pairs

from taskc.ir.affine import constant_difference
from taskc.ir.build import ZERO, add, digits_of, floor_divide, index, multiply, product, total
from taskc.ir.extents import are_as_many
from taskc.ir.nodes import Expression, Variable

Extent = int | Expression
Indices = tuple[Expression, ...]


def seen_in(
    at: Sequence[Expression], shape: Sequence[Extent], whole: Sequence[Extent], offset: object = 0
) -> Indices | None:
    """The indices in the whole of an element of a view; None where constants alone don't determine them.

    offset  the element of the whole at which the view starts
    """
    if 0 in (*shape, *whole) or not isinstance(offset, int):
        return None
    if not offset and are_as_many(shape, whole):
        groups = _groups(shape, whole)
        return None if groups is None else _regrouped(at, shape, whole, groups)
    return _part(at, shape, whole, offset)


def _regrouped(
    at: Sequence[Expression],
    shape: Sequence[Extent],
    whole: Sequence[Extent],
    groups: Sequence[tuple[slice, slice]],
) -> Indices | None:
    regrouped: list[Expression] = []
    for own, other in groups:
        digits = _digits(flat_index(at[own], shape[own]), whole[other])
        if digits is None:
            return None
        regrouped += digits
    return tuple(regrouped)


def _groups(
    shape: Sequence[Extent], whole: Sequence[Extent]
) -> tuple[tuple[slice, slice], ...] | None:
    """Matching groups of neighbouring axes with equal numbers of elements, first axes first; None if there are none."""
    groups: list[tuple[slice, slice]] = []
    end, other_end = len(shape), len(whole)
    while end or other_end:
        for taken, other_taken in _fewest_first(end, other_end):
            own, other = slice(end - taken, end), slice(other_end - other_taken, other_end)
            if are_as_many(shape[own], whole[other]):
                break
        else:
            return None
        groups.append((own, other))
        end, other_end = own.start, other.start
    return tuple(groups[::-1])


def _fewest_first(most: int, other_most: int) -> Iterator[tuple[int, int]]:
    """Numbers of axes to match, fewest first: one of each is tried before a lone axis of extent 1."""
    counts = [*pairs(range(most + 1), range(other_most + 1))][1:]
    yield from sorted(counts, key=lambda taken: (sum(taken) + (0 in taken) * 2, taken))


def _part(
    at: Sequence[Expression], shape: Sequence[Extent], whole: Sequence[Extent], offset: int
) -> Indices | None:
    """Indices in a part of the leading axes, where the last axes of both shapes are equal."""
    same = 0
    while same < min(len(shape), len(whole)) and are_as_many(
        shape[-1 - same :][:1], whole[-1 - same :][:1]
    ):
        same += 1
    for axes in range(same, -1, -1):
        stride = product(whole[len(whole) - axes :])
        first = floor_divide(index(offset), stride) if offset else ZERO
        if are_as_many([multiply(first, stride)], [offset]):
            own, other = len(shape) - axes, len(whole) - axes
            digits = _digits(add(flat_index(at[:own], shape[:own]), first), whole[:other])
            return None if digits is None else (*digits, *at[own:])
    return None


def flat_index(at: Sequence[Expression], shape: Sequence[Extent]) -> Expression:
    return total([multiply(place, product(shape[axis + 1 :])) for axis, place in enumerate(at)])


def _digits(number: Expression, shape: Sequence[Extent]) -> list[Expression] | None:
    """The indices of an element by its number; None unless all axes but the first have constant extents."""
    if not shape:
        return []
    sizes = [extent if isinstance(extent, int) else None for extent in shape]
    if None in sizes[1:]:
        return None
    return digits_of(number, [size or 0 for size in sizes])


def is_same_number(
    at: Sequence[Expression],
    shape: Sequence[Extent],
    other: Sequence[Expression],
    other_shape: Sequence[Extent],
) -> bool:
    """Whether two elements certainly have the same row-major index."""
    return constant_difference(flat_index(at, shape), flat_index(other, other_shape)) == 0


def bijection(
    at: Sequence[Expression], shape: Sequence[Extent], variables: Sequence[Variable]
) -> dict[Variable, int] | None:
    """The axis of each variable, if the indices are distinct variables, and 0 on axes of one element; else None."""
    axes: dict[Variable, int] = {}
    for axis, place in enumerate(at):
        if isinstance(place, Variable) and place in variables and place not in axes:
            axes[place] = axis
        elif not (place == ZERO and shape[axis] == 1):
            return None
    return axes
