"""An expression of one to four inputs, element by element, as NumPy broadcasts shapes.

A `Problem` is what is computed, a plan (`Boxes`) how, and `boxes` the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from types import FunctionType
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    Mapping,
    TensorType,
    f32,
    repeat,
    spatial,
)
from taskc.kernels.extents import known
from taskc.kernels.machine_facts import seconds_of_bytes
from taskc.kernels.owners import boxes_of, owners_of_boxes, width
from taskc.tune.choose import choose, remembered
from taskc.tune.space import Operator

__all__ = ["Boxes", "Problem", "build", "elementwise"]


def elementwise(
    expression: Callable[..., Any],
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[DType] = (f32,),
    *,
    result: DType | None = None,
    machine: Machine | None = None,
) -> KernelDefinition:
    """y = expression(a, b, ...), with the inputs' shapes and types, and the type of the result.

    expression  a @tc.function, a Python function that could be one, or tc.gelu and its like
    dtypes      one for each input, or one for all
    result      the type of y; the first input's if it is None. The expression's value is converted
    """
    problem = problem_of(expression, shapes, dtypes, result)
    return build(problem, None, machine or tc.machine())


@remembered
def build(problem: Problem, plan: Boxes | None, machine: Machine) -> KernelDefinition:
    """Build it by this plan, or by the one that is chosen."""
    return boxes(problem, plan or choose(ELEMENTWISE, problem, machine))


# --- What an elementwise expression computes, as NumPy broadcasts shapes, and how a kernel sees it
# Axes that the same inputs run along are joined, so that a kernel sees at most four.


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
    """Check options and complete them: the problem of a user's call."""
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


# --- How an elementwise expression is computed, as data: who has which part of a block's box ----


@dataclass(frozen=True, slots=True)
class Boxes:
    """own      who has which elements of a block
    at_ends  of a block that sticks out, element by element, where accesses of `own` would
    """

    own: Mapping
    at_ends: Mapping | None = None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes."""
        nbytes = sum(
            x.dtype.nbytes * prod(known(n) for n in x.shape) for x in (*problem.given, problem.made)
        )
        return seconds_of_bytes(nbytes, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Boxes]:
        for accesses in (1, 2, 4, 8):
            own = boxes_of(problem.made.shape, _width(problem, machine), machine, accesses)
            yield _boxes(problem, machine, own)


def candidates(problem: Problem, machine: Machine) -> list[Boxes]:
    own = owners_of_boxes(problem.made.shape, _width(problem, machine), machine)
    return [_boxes(problem, machine, own)]


def _width(problem: Problem, machine: Machine) -> int:
    """Elements of an access.

    The blocks of a single axis begin at such an address as the widest accesses need, wherever it ends: only the
    last one goes element by element.
    """
    is_alone = all(isinstance(n, int) and n == 1 for n in problem.made.shape[:-1])
    is_wide = is_alone and not machine.is_processor
    return width(0 if is_wide else problem.made.shape[-1], *problem.dtypes)


def _boxes(problem: Problem, machine: Machine, own: Mapping) -> Boxes:
    wide = _width(problem, machine)
    if machine.is_processor or wide == width(problem.made.shape[-1], *problem.dtypes):
        return Boxes(own)
    return Boxes(own, repeat(1, 1, 1, own.slots) * spatial(1, 1, 1, own.workers))


# --- An elementwise expression, by boxes of the result: a block has one -------------------------


def boxes(problem: Problem, plan: Boxes) -> KernelDefinition:
    kinds, made, value = problem.given, problem.made, problem.value
    whole, own, at_ends = made.shape, plan.own, plan.at_ends or plan.own
    box = own.shape

    @tc.kernel(workers=own.workers)
    def elementwise(
        a: tc.typed[kinds[0]],
        b: tc.typed[kinds[1:2]],
        c: tc.typed[kinds[2:3]],
        d: tc.typed[kinds[3:]],
        y: tc.out[made],
    ) -> None:
        inputs = (a, *b, *c, *d)
        for (*first,) in tc.tiles(whole, by=box):
            if at_ends is not own and first[-1] + box[-1] <= whole[-1]:
                for (*at,) in own:
                    place = tuple(first[axis] + at[axis] for axis in range(RANK))
                    y[place] = value(inputs, place)
            else:
                for (*at,) in at_ends:
                    place = tuple(first[axis] + at[axis] for axis in range(RANK))
                    if all(place[axis] < whole[axis] for axis in range(RANK)):
                        y[place] = value(inputs, place)

    return elementwise


ELEMENTWISE = Operator("elementwise", candidates, build, (Boxes,))
