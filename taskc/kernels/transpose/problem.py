"""What a transpose computes, and which four axes its blocks go through, whichever algorithm does it.

Axes that stay together are joined. If more than four are left, all but the last of the input and that of the output
are counted by one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, boolean

RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """y is x with its axes in another order.

    given, made  the types of x and y
    order    which axis of x is each of y's
    extents  of the four axes that blocks go through
    across   which of them the output ends with; the input ends with the last
    digits   for each axis of x: of which of the four numbers its index is a digit, of what size, and below what
             limit, if there is one; none where the four are x's axes
    """

    given: TensorType
    made: TensorType
    order: tuple[int, ...]
    extents: tuple[Any, ...]
    across: int
    digits: tuple[tuple[int, int, int], ...] = ()

    @property
    def dtype(self) -> DType:
        return self.given.dtype

    @property
    def wide(self) -> DType:
        """The type of what is turned in registers."""
        return self.dtype

    @property
    def outside(self) -> Any:
        """What stands for elements behind an edge."""
        return False if self.dtype is boolean else 0

    @property
    def source(self) -> Callable[..., Any]:
        """The indices of x, from those of the four axes."""

        @tc.function
        def source(place: Any) -> Any:
            return (
                (*[_digit(place[at], size, n) for at, size, n in self.digits],)
                if self.digits
                else place
            )

        return source

    @property
    def target(self) -> Callable[..., Any]:
        """The indices of y."""
        source = self.source

        @tc.function
        def target(place: Any) -> Any:
            there = source(place)
            return (*[there[axis] for axis in self.order],)

        return target

    @property
    def replaced(self) -> Callable[..., Any]:
        """Indices of the four axes, with another one in the axis `across`."""

        @tc.function
        def replaced(a: Any, b: Any, c: Any, row: Any, col: Any) -> Any:
            return (
                row if self.across == 0 else a,
                row if self.across == 1 else b,
                row if self.across == 2 else c,
                col,
            )

        return replaced


@tc.function
def _digit(number: Any, size: Any, extent: Any) -> Any:
    """A digit of a number: the first has no others before it, the last none behind it."""
    upper = number // size if size > 1 else number
    return upper % extent if extent else upper


def problem_of(shape: Sequence[Any], order: Sequence[int] | None, dtype: DType) -> Problem:
    """The problem of what a user asks for, if there is one."""
    wanted = tuple(range(len(shape))[::-1] if order is None else order)
    given, places = joined(shape, wanted)
    made = tuple([given[axis] for axis in places])
    across, last = places[-1], len(given) - 1
    extents: tuple[Any, ...] = given
    digits: tuple[tuple[int, int, int], ...] = ()
    if len(given) > RANK:
        extents, digits = _counted(shape, wanted, given, across)
        across = RANK - 1 if across == last else RANK - 2
    return Problem(
        given=dtype[tuple(shape)].reshape(*given),
        made=dtype[tuple([shape[axis] for axis in wanted])].reshape(*made),
        order=places,
        extents=extents,
        across=across,
        digits=digits,
    )


def joined(shape: Sequence[Any], order: Sequence[int]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The extents of at least four axes, neighbours that stay together being one, and their new order."""
    rank = len(shape)
    if sorted(axis % rank if -rank <= axis < rank else rank for axis in order) != [*range(rank)]:
        raise CompileError(f"{tuple(order)} is no order of the axes of {tuple(shape)}")
    wanted = [axis % rank for axis in order]
    wanted = [axis for axis in wanted if not (isinstance(shape[axis], int) and shape[axis] == 1)]
    runs: list[list[int]] = []
    for axis in wanted:
        follows = bool(runs) and not [n for n in wanted if runs[-1][-1] < n < axis]
        if follows and axis > runs[-1][-1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    missing = max(0, RANK - len(runs))
    sources = sorted(runs)
    extents = [prod(shape[axis] for axis in run) for run in sources]
    places = (*range(missing), *[missing + sources.index(run) for run in runs])
    return (*[1] * missing, *extents), places


def _counted(
    shape: Sequence[Any], wanted: Sequence[int], given: tuple[Any, ...], across: int
) -> tuple[tuple[Any, ...], tuple[tuple[int, int, int], ...]]:
    """Four extents, one of which counts the axes that neither side ends with; and each axis' digit."""
    last = len(given) - 1
    if not all(isinstance(extent, int) for extent in given):
        raise CompileError(
            f"the order {tuple(wanted)} takes the axes of {tuple(shape)} apart too often",
            hint=f"with neighbours joined, {len(given)} are left, and {RANK} is the limit where"
            " their extents aren't known",
        )
    digits: list[tuple[int, int, int]] = []
    count = 1
    for axis in range(last, -1, -1):
        if axis in (across, last):
            digits.insert(0, (RANK - 1 if axis == last else RANK - 2, 0, 0))
        else:
            is_first = not set(range(axis)) - {across}
            digits.insert(0, (RANK - 3, max(1, count), 0 if is_first else max(1, given[axis])))
            count *= given[axis]
    height = 1 if across == last else given[across]
    return (1, count, height, given[last]), tuple(digits)
