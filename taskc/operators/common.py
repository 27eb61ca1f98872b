"""Functions shared by several families of operators: axes, and shapes broadcast as NumPy does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import taskc as tc
from taskc.lang.sizes import are_surely_equal as are_equal
from taskc.operators.call import Call

__all__ = [
    "ELEMENT_TYPES", "are_equal", "axes_of", "axis_of", "broadcast", "element", "equals", "ones", "spliced", "total",
]  # fmt: skip

# By the numbers that models use.
ELEMENT_TYPES = {
    1: tc.f32, 2: tc.u8, 3: tc.i8, 4: tc.u16, 5: tc.i16, 6: tc.i32, 7: tc.i64, 9: tc.boolean,
    10: tc.f16, 11: tc.f64, 12: tc.u32, 13: tc.u64, 16: tc.bf16, 17: tc.f8e4m3, 19: tc.f8e5m2,
}  # fmt: skip


def axis_of(call: Call, axis: Any, rank: int) -> int:
    """The number of an axis, which may be counted from the end."""
    if not -rank <= axis < rank:
        raise call.node.error(f"there is no axis {axis} in {rank} dimensions")
    return int(axis) % rank


def axes_of(call: Call, axes: Sequence[Any], rank: int) -> tuple[int, ...]:
    """The numbers of axes, each named once, in the order in which they are named."""
    numbers = tuple([axis_of(call, axis, rank) for axis in axes])
    if len({*numbers}) < len(numbers):
        raise call.node.error(f"it names an axis twice: {list(axes)}")
    return numbers


def equals(one: Any, other: Any) -> bool:
    """Whether extents are equal, where what is built depends on it: the program may assume it (`Assumptions`).

    Use `are_equal` where sizes that are equal only at some calls may as well count as different.

    """
    try:
        return bool(one == other)
    except tc.CompileError:
        return False


def broadcast(call: Call, *shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape to which all of these broadcast."""
    result: list[Any] = []
    for shape in shapes:
        result[:0] = [1] * (len(shape) - len(result))
        for back in range(1, len(shape) + 1):
            extent, before = shape[-back], result[-back]
            if are_equal(before, 1):
                result[-back] = extent
            elif not are_equal(extent, 1) and not are_equal(extent, before):
                text = " and ".join(str([*shape]) for shape in shapes)
                raise call.node.error(f"the shapes {text} can't be broadcast together")
    return tuple(result)


def ones(shape: Sequence[Any]) -> tuple[bool, ...]:
    """For each axis, whether it has one element."""
    return tuple([are_equal(extent, 1) for extent in shape])


@tc.function
def spliced(at, start, stop, parts):
    """An index with other parts in place of those from `start` up to `stop`."""
    return (*at[:start], *parts, *at[stop:])


@tc.function
def element(x, once, at):
    """The element of an input that an index of the broadcast result reads.

    once  for each axis of the input, whether it has one element
    """
    return x[
        tuple(
            0 if one else place for one, place in zip(once, at[len(at) - len(once) :], strict=True)
        )
    ]


def total(terms: Sequence[Any]) -> Any:
    """The function that is the sum of several functions of one argument."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    left, right = total(terms[:middle]), total(terms[middle:])
    return tc.function(lambda at: left(at) + right(at))
