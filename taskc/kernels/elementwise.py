"""An expression of one to four inputs, element by element, as NumPy broadcasts shapes.

Axes that the same inputs run along are joined, so that a kernel sees at most four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import taskc as tc
from taskc import CompileError, DType, KernelDefinition, Machine, Mapping, f32, repeat, spatial
from taskc.kernels.owners import owners_of_boxes, width

_RANK = 4
_MOST = 4


def joined(shapes: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...]]:
    """The output's shape; and how a kernel sees each of its inputs, and last its output: four axes each.

    An extent of 1 is repeated along the others' axis.
    """
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    columns, whole = [], []
    for extents in zip(*padded, strict=True):
        found = {extent for extent in extents if not _is_one(extent)}
        if len(found) > 1:
            raise CompileError(
                f"the shapes {', '.join(map(str, map(tuple, shapes)))} can't be broadcast",
                hint=f"an axis has the extents {', '.join(map(str, extents))}",
            )
        whole.append(found.pop() if found else 1)
        if not _is_one(whole[-1]):
            columns.append((*extents, whole[-1]))
    left: list[tuple[Any, ...]] = []
    for column in columns:
        if left and _same_inputs(left[-1], column):
            before = left.pop()
            column = tuple([a * b for a, b in zip(before, column, strict=True)])
        left.append(column)
    if len(left) > _RANK:
        raise CompileError(
            f"the shapes {', '.join(map(str, map(tuple, shapes)))} alternate too often",
            hint=f"with neighbours joined, {len(left)} axes are left, and {_RANK} is the limit",
        )
    left = [(1,) * (len(shapes) + 1)] * (_RANK - len(left)) + left
    return tuple(whole), tuple(zip(*left, strict=True))


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def _same_inputs(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether the same inputs are repeated along both axes."""
    return [_is_one(extent) for extent in a] == [_is_one(extent) for extent in b]


def elementwise(
    expression: Callable[..., Any],
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[DType] = (f32,),
    *,
    result: DType | None = None,
    unroll: int = 4,
    machine: Machine | None = None,
) -> KernelDefinition:
    """y = expression(a, b, ...), with the inputs' shapes and types, and the type of the result.

    expression  a @tc.function, a Python function that could be one, or tc.gelu and its like
    dtypes      one for each input, or one for all
    result      the type of y; the first input's if it is None. The expression's value is converted
    """
    count = len(shapes)
    if not 1 <= count <= _MOST:
        raise CompileError(f"an expression of {count} inputs: there are 1 to {_MOST}")
    types = tuple(dtypes) * count if len(dtypes) == 1 else tuple(dtypes)
    if len(types) != count:
        raise CompileError(f"{count} inputs, and {len(types)} types")
    apply = tc.function(expression) if isinstance(expression, FunctionType) else expression
    final = result or types[0]
    shape, (*seen, whole) = joined(shapes)
    kinds = tuple(
        dtype[tuple(given)].reshape(*view)
        for dtype, given, view in zip(types, shapes, seen, strict=True)
    )
    output = final[shape].reshape(*whole)
    machine = machine or tc.machine()
    own, at_ends = _owners(whole, (*types, final), machine, unroll)
    box = own.shape
    once = [[_is_one(extent) for extent in view] for view in seen]

    @tc.function
    def value(inputs, place):
        parts = [_at(inputs[n], once[n], place) for n in range(count)]
        return apply(*parts).to(final)

    @tc.kernel(workers=own.workers)
    def elementwise(a: kinds[0], b: kinds[1:2], c: kinds[2:3], d: kinds[3:], y: tc.out[output]):
        inputs = (a, *b, *c, *d)
        for (*first,) in tc.tiles(whole, by=box):
            if at_ends is not own and first[-1] + box[-1] <= whole[-1]:
                for (*at,) in own:
                    place = tuple(first[axis] + at[axis] for axis in range(_RANK))
                    y[place] = value(inputs, place)
            else:
                for (*at,) in at_ends:
                    place = tuple(first[axis] + at[axis] for axis in range(_RANK))
                    if all(place[axis] < whole[axis] for axis in range(_RANK)):
                        y[place] = value(inputs, place)

    return elementwise


def _owners(
    whole: Sequence[Any], dtypes: Sequence[DType], machine: Machine, unroll: int
) -> tuple[Mapping, Mapping]:
    """Who has which elements of a block; and of a block that sticks out.

    The blocks of a single axis begin at such an address as the widest accesses need, wherever it ends: only the
    last one goes element by element.
    """
    wide, most = width(whole[-1], *dtypes), width(0, *dtypes)
    if machine.is_processor or wide == most or not all(map(_is_one, whole[:-1])):
        own = owners_of_boxes(whole, wide, machine, accesses=unroll)
        return own, own
    own = owners_of_boxes(whole, most, machine, accesses=unroll)
    return own, repeat(1, 1, 1, own.slots) * spatial(1, 1, 1, own.workers)


@tc.function
def _at(x, once, place):
    """The element that is repeated along the axes where there is one."""
    return x[tuple(0 if once[axis] else place[axis] for axis in range(_RANK))]
