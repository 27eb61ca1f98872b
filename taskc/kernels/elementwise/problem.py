"""What an elementwise expression computes, as NumPy broadcasts shapes, and how a kernel sees it.

Axes that the same inputs run along are joined, so that a kernel sees at most four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType

RANK = 4
_MOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """y = expression(a, b, ...)

    given, made  the types of the inputs and of y, of four axes; an extent of 1 is repeated along the others' axis
    """

    expression: Callable[..., Any]
    given: tuple[TensorType, ...]
    made: TensorType

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (*(x.dtype for x in self.given), self.made.dtype)

    @property
    def wide(self) -> DType:
        """The widest type, by which registers are filled."""
        return max(self.dtypes, key=lambda dtype: dtype.bits)

    @property
    def value(self) -> Callable[..., Any]:
        """An element of y, from the inputs."""
        count, once = len(self.given), [[_is_one(extent) for extent in x.shape] for x in self.given]

        @tc.function
        def value(inputs: Any, place: Any) -> Any:
            parts = [_at(inputs[n], once[n], place) for n in range(count)]
            return self.expression(*parts).to(self.made.dtype)

        return value


@tc.function
def _at(x: Any, once: Any, place: Any) -> Any:
    """The element that is repeated along the axes where there is one."""
    return x[tuple(0 if once[axis] else place[axis] for axis in range(RANK))]


def problem_of(
    expression: Callable[..., Any],
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[DType],
    result: DType | None,
) -> Problem:
    """The problem of what a user asks for, if there is one."""
    count = len(shapes)
    if not 1 <= count <= _MOST:
        raise CompileError(f"an expression of {count} inputs: there are 1 to {_MOST}")
    types = tuple(dtypes) * count if len(dtypes) == 1 else tuple(dtypes)
    if len(types) != count:
        raise CompileError(f"{count} inputs, and {len(types)} types")
    shape, (*seen, whole) = joined(shapes)
    given = zip(types, shapes, seen, strict=True)
    return Problem(
        expression=tc.function(expression) if isinstance(expression, FunctionType) else expression,
        given=tuple([dtype[tuple(shape)].reshape(*view) for dtype, shape, view in given]),
        made=(result or types[0])[shape].reshape(*whole),
    )


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
    if len(left) > RANK:
        raise CompileError(
            f"the shapes {', '.join(map(str, map(tuple, shapes)))} alternate too often",
            hint=f"with neighbours joined, {len(left)} axes are left, and {RANK} is the limit",
        )
    left = [(1,) * (len(shapes) + 1)] * (RANK - len(left)) + left
    return tuple(whole), tuple(zip(*left, strict=True))


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def _same_inputs(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether the same inputs are repeated along both axes."""
    return [_is_one(extent) for extent in a] == [_is_one(extent) for extent in b]
