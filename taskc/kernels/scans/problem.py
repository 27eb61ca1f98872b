"""What a scan computes, and how kernels see it: as `[outer, along, inner]`, with neighbouring axes joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, boolean
from taskc.kernels.precision import wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """operator  "sum" or "prod"
    given     the type of x, and of y, of three axes
    """

    operator: str
    given: TensorType
    exclusive: bool = False
    reverse: bool = False

    @property
    def wide(self) -> DType:
        """What is computed in."""
        return wide(self.given.dtype)

    @property
    def behind(self) -> int:
        """How far an element lies behind the place of the first sum that it is in."""
        return 1 if self.exclusive else 0

    @property
    def place(self) -> Callable[..., Any]:
        """Where along the axis the sum of a place is, counted as the scan goes."""
        along = self.given.shape[1]

        @tc.function
        def place(p: Any) -> Any:
            return along - 1 - p if self.reverse else p

        return place

    @property
    def element(self) -> Callable[..., Any]:
        """Where along the axis the last element is of the sum of a place."""
        place = self.place

        @tc.function
        def element(p: Any) -> Any:
            return place(p - self.behind)

        return element

    @property
    def start(self) -> int | float:
        """What changes nothing: of sums -0.0, where it isn't itself a result."""
        if self.operator == "prod":
            return 1
        return 0 if self.exclusive or not self.wide.is_float else -0.0

    @property
    def symbol(self) -> str:
        """What `tc.scan` and `tc.reduce` call the operator."""
        return "*" if self.operator == "prod" else "+"

    @property
    def folded(self) -> Callable[..., Any]:
        """Of two numbers one."""
        if self.operator == "prod":
            return tc.function(lambda a, b: a * b)
        return tc.function(lambda a, b: a + b)


def problem_of(
    operator: str, shape: Sequence[Any], axis: int, dtype: DType, *, exclusive: bool, reverse: bool
) -> Problem:
    """The problem of what a user asks for, if there is one."""
    rank = len(shape)
    if not -rank <= axis < rank:
        raise CompileError(f"axis {axis} is not one of {rank}")
    if dtype is boolean:
        raise CompileError(f"there is no {operator} of {dtype}")
    at = axis % rank
    view = prod(shape[:at]), shape[at], prod(shape[at + 1 :])
    given = dtype[tuple(shape)].reshape(*view)
    return Problem(operator=operator, given=given, exclusive=exclusive, reverse=reverse)
