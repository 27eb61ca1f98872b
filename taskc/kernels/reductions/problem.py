"""A reduction as a problem, and how kernels see it, whichever algorithm computes it.

A kernel sees its arrays with neighbouring axes joined, as `[outer, apart, middle, along, inner]`: it folds
`apart` and `along`, and keeps the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, InternalError, TensorType, boolean, i64
from taskc.dataclass import dataclass
from taskc.kernels.signatures import Function, Value, wide

OPERATORS = {"sum": "+", "mean": "+", "prod": "*", "max": "max", "min": "min"}
PLACES = {"argmax": "max", "argmin": "min"}


View = tuple[Any, Any, Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """given, made  the types of x and y, of five axes; made has as many elements `along` as there are parts

    last  whether argmax and argmin give the last place of several
    """

    operator: str
    given: TensorType
    made: TensorType
    last: bool = False

    @property
    def view(self) -> View:
        outer, apart, middle, along, inner = self.given.shape
        return outer, apart, middle, along, inner

    @property
    def has_rows(self) -> bool:
        """Whether the innermost axis is folded."""
        return isinstance(self.view[4], int) and self.view[4] == 1

    @property
    def wide(self) -> DType:
        """The type of folds."""
        return wide(self.given.dtype)

    @property
    def start(self) -> Any:
        """The neutral element of the fold."""
        operator, dtype = PLACES.get(self.operator, self.operator), self.wide
        if operator not in ("max", "min"):
            return 1 if operator == "prod" else 0
        if dtype.is_float:
            return -tc.inf if operator == "max" else tc.inf
        return dtype.minimum if operator == "max" else dtype.maximum

    @property
    def folded(self) -> Function:
        """The fold of two numbers."""

        @tc.function
        def folded(a: Value, b: Value) -> Value:
            if self.operator == "max":
                result = max(a, b)
            elif self.operator == "min":
                result = min(a, b)
            elif self.operator == "prod":
                result = a * b
            else:
                result = a + b
            return result

        return folded

    @property
    def finished(self) -> Function:
        """A result, from what all numbers have been folded into."""
        _, apart, _, along, _ = self.view

        @tc.function
        def finished(value: Value) -> Any:
            if self.operator == "mean":
                value /= self.wide(apart * along)
            return value.to(self.made.dtype)

        return finished


def problem_of(
    operator: str,
    shape: Sequence[Any],
    axes: Iterable[int],
    dtype: DType,
    *,
    keepdims: bool,
    result: DType | None = None,
) -> Problem:
    """Check options and complete them: the problem of a user's call."""
    if operator not in OPERATORS:
        raise CompileError(
            f"there is no reduction {operator!r}", hint=f"there is {list(OPERATORS)}"
        )
    if dtype is boolean or (operator == "mean" and not dtype.is_float):
        raise CompileError(f"there is no {operator} of {dtype}")
    folded = folded_axes(len(shape), axes)
    view, reduced = _views(shape, folded)
    if operator in ("max", "min") and 0 in (view[1], view[3]):
        raise CompileError(f"the {operator} of no elements has no value", hint=f"{tuple(shape)}")
    return Problem(
        operator=operator,
        given=dtype[tuple(shape)].reshape(*view),
        made=(result or dtype)[kept(shape, folded, keepdims=keepdims)].reshape(*reduced),
    )


def problem_of_places(
    operator: str, shape: Sequence[Any], axis: int, dtype: DType, *, keepdims: bool, last: bool
) -> Problem:
    """The problem of where the largest or the smallest number is."""
    problem = problem_of(PLACES[operator], shape, (axis,), dtype, keepdims=keepdims)
    return replace(problem, operator=operator, made=replace(problem.made, dtype=i64), last=last)


def folded_axes(rank: int, axes: Iterable[int]) -> set[int]:
    folded = set()
    for axis in axes:
        if not -rank <= axis < rank:
            raise CompileError(f"axis {axis} is not one of {rank}")
        folded.add(axis % rank)
    return folded


def kept(shape: Sequence[Any], folded: set[int], *, keepdims: bool) -> tuple[Any, ...]:
    """A result's shape."""
    if not keepdims:
        return tuple([extent for axis, extent in enumerate(shape) if axis not in folded])
    return tuple([1 if axis in folded else extent for axis, extent in enumerate(shape)])


def last_two_groups(shape: Sequence[Any], folded: set[int]) -> set[int]:
    """The axes of the last two groups of neighbours among those that are folded; any of extent 1 belong to none."""
    found, groups, is_inside = set(), 0, False
    for axis in reversed(range(len(shape))):
        if isinstance(shape[axis], int) and shape[axis] == 1:
            continue
        groups += axis in folded and not is_inside
        is_inside = axis in folded
        if is_inside and groups <= 2:
            found.add(axis)
    return found


def _views(shape: Sequence[Any], folded: set[int]) -> tuple[View, View]:
    """How a kernel sees its input and its output."""
    runs: list[tuple[bool, list[Any]]] = []
    for axis, extent in enumerate(shape):
        if isinstance(extent, int) and extent == 1:
            continue
        if not runs or runs[-1][0] is not (axis in folded):
            runs.append((axis in folded, []))
        runs[-1][1].append(extent)
    joined = [(is_folded, prod(extents)) for is_folded, extents in runs]
    if joined and not joined[-1][0]:
        inner = joined.pop()[1]
    else:
        inner = 1
    # From the back: along, middle, apart, outer.
    parts = [1, 1, 1, 1]
    for place, want in enumerate((True, False, True, False)):
        if joined and joined[-1][0] is want:
            parts[place] = joined.pop()[1]
    if joined:
        raise InternalError(f"axes {sorted(folded)} of {len(shape)} lie in more than two groups")
    along, middle, apart, outer = parts
    return (outer, apart, middle, along, inner), (outer, 1, middle, 1, inner)
