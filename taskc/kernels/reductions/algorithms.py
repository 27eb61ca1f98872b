"""The algorithms for reductions: `fold` in one kernel, `in_parts` and `in_turn` in two steps, `places` of extremes."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, ProgramDefinition, TensorType, i32, i64
from taskc.kernels.reductions.plan import Fold, Parts, in_two
from taskc.kernels.reductions.problem import OPERATORS, PLACES, Problem
from taskc.kernels.signatures import Value

# --- A reduction by one kernel, of all elements or of parts of them -----------------------------
# Where the innermost axis is kept, neighbouring workers have neighbouring columns; where it is folded, they walk
# along it, and fold what each has found at the end. On GPUs a block has several rows, or its workers several
# elements of each column.


def fold(problem: Problem, plan: Fold, size: int | None = None) -> KernelDefinition:
    """`size` elements of the axis `along` go into each part; all of them into one if it is None."""
    make = _rows if problem.has_rows else _columns
    return make(problem, plan, size)


def _columns(problem: Problem, plan: Fold, size: int | None) -> KernelDefinition:
    outer, apart, middle, along, inner = problem.view
    given, made, wide, own = problem.given, problem.made, problem.wide, plan.own
    parts, deep = made.shape[3], plan.deep
    rows, columns = own.shape
    folded, finished = problem.folded, problem.finished

    @tc.kernel(workers=own.workers)
    def fold(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, part, col in tc.tiles((outer, middle, parts, inner), by=(1, 1, 1, columns)):
            strip = tc.tile(wide, own, problem.start)
            first = 0 if size is None else part * size
            last = along if size is None else min(first + size, along)
            for p in range(apart):
                for q in range(first, last, rows * deep):
                    for i, j in own:
                        for r in range(deep):
                            if q + r * rows + i < last and col + j < inner:
                                value = x[a, p, b, q + r * rows + i, col + j].to(wide)
                                strip[i, j] = folded(strip[i, j], value)
            if rows == 1:
                for i, j in own:
                    if col + j < inner:
                        y[a, i, b, part, col + j] = finished(strip[i, j])
            else:
                total = tc.reduce(strip, 0, OPERATORS[problem.operator])
                for j in total.mapping:
                    if col + j < inner:
                        y[a, 0, b, part, col + j] = finished(total[j])

    return fold


def _rows(problem: Problem, plan: Fold, size: int | None) -> KernelDefinition:
    outer, apart, middle, along, _ = problem.view
    given, made, wide, own = problem.given, problem.made, problem.wide, plan.own
    parts = made.shape[3]
    rows, step = own.shape
    folded, finished = problem.folded, problem.finished

    @tc.kernel(workers=own.workers)
    def fold(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, part in tc.tiles((outer, middle, parts), by=(1, rows, 1)):
            totals = tc.tile(wide, own, problem.start)
            first = 0 if size is None else part * size
            last = along if size is None else min(first + size, along)
            for p in range(apart):
                for col in range(first, last, step):
                    for i, j in own:
                        if b + i < middle and col + j < last:
                            value = x[a, p, b + i, col + j, 0].to(wide)
                            totals[i, j] = folded(totals[i, j], value)
            total = tc.reduce(totals, 1, OPERATORS[problem.operator])
            for i in total.mapping:
                if b + i < middle:
                    y[a, 0, b + i, part, 0] = finished(total[i])

    return fold


# --- Reductions in two steps, of which the second folds what the first one gives ----------------
# Where many numbers become few, parts are folded by blocks of their own. Axes in more than two groups are folded in
# turn.


def in_parts(problem: Problem, plan: Parts) -> ProgramDefinition:
    outer, _, middle, along, inner = problem.view
    first, second = in_two(problem)
    partial, combine = fold(first, plan.partial, plan.size), fold(second, plan.rest)
    between = problem.wide[outer, 1, middle, tc.cdiv(along, plan.size), inner]
    return in_turn(partial, combine, (problem.given.as_given, between, problem.made.as_given))


def in_turn(
    first: KernelDefinition | ProgramDefinition,
    second: KernelDefinition | ProgramDefinition,
    types: tuple[TensorType, TensorType, TensorType],
) -> ProgramDefinition:
    """second(first(x)), by the types of x, of what is between, and of the result."""
    given, between, made = types

    @tc.program
    def reduction(x: tc.typed[given], y: tc.out[made]) -> None:
        partial = tc.empty(between)
        first(x, out=partial)
        second(partial, out=y)

    return reduction


# --- Where the largest or the smallest number along an axis is ----------------------------------
# Each worker keeps the best number that it has met, and its place; along a row, in which step that was, which is one
# number for all workers. Those of the workers who go along the axis side by side are compared at the end: of the best
# ones the first place, or the last. NaN is better than any number.


def places(problem: Problem, plan: Fold) -> KernelDefinition:
    make = _places_in_rows if problem.has_rows else _places_in_columns
    return make(problem, plan)


def _places_in_columns(problem: Problem, plan: Fold) -> KernelDefinition:
    _, _, middle, along, inner = problem.view
    given, made, wide, own = problem.given, problem.made, problem.wide, plan.own
    rows, columns = own.shape
    index = _index(problem)

    @tc.kernel(workers=own.workers)
    def places(x: tc.typed[given], y: tc.out[made]) -> None:
        for b, col in tc.tiles((middle, inner), by=(1, columns)):
            best = tc.tile(wide, own, problem.start)
            place = tc.tile(index, own, -1)
            for q in range(0, along, rows):
                for i, j in own:
                    if q + i < along and col + j < inner:
                        value = x[0, 0, b, q + i, col + j].to(wide)
                        better = _is_better(problem, value, best[i, j])
                        best[i, j] = value if better else best[i, j]
                        place[i, j] = (q + i).to(index) if better else place[i, j]
            result = _found(problem, best, place, 0)
            for j in result.mapping:
                if col + j < inner:
                    y[0, 0, b, 0, col + j] = result[j].to(i64)

    return places


def _places_in_rows(problem: Problem, plan: Fold) -> KernelDefinition:
    _, _, middle, along, _ = problem.view
    given, made, wide, own = problem.given, problem.made, problem.wide, plan.own
    rows, step = own.shape
    index = _index(problem)

    @tc.kernel(workers=own.workers)
    def places(x: tc.typed[given], y: tc.out[made]) -> None:
        for b in tc.tiles(middle, by=rows):
            best = tc.tile(wide, own, problem.start)
            place = tc.tile(index, own, -1)
            for turn in range(tc.cdiv(along, step)):
                for i, j in own:
                    if b + i < middle and turn * step + j < along:
                        value = x[0, 0, b + i, turn * step + j, 0].to(wide)
                        better = _is_better(problem, value, best[i, j])
                        best[i, j] = value if better else best[i, j]
                        place[i, j] = index(turn) if better else place[i, j]
            for i, j in own:  # where nothing was better, it stays below 0
                place[i, j] = place[i, j] * step + j.to(index)
            result = _found(problem, best, place, 1)
            for i in result.mapping:
                if b + i < middle:
                    y[0, 0, b + i, 0, 0] = result[i].to(i64)

    return places


def _index(problem: Problem) -> DType:
    """Of places: as wide as the numbers mostly are, so that both are chosen alike."""
    along = problem.view[3]
    is_short = isinstance(along, int) and along <= i32.maximum // 2
    index: DType = i32 if is_short else i64
    return index


@tc.function
def _is_better(problem: Problem, value: Value, best: Value) -> Any:
    """Whether a number's place takes that of the best number before it."""
    is_largest, last = problem.operator == "argmax", problem.last
    if not problem.wide.is_float:
        better = value > best if is_largest else value < best
        better = better or (last and value == best)
    elif last:
        better = (value >= best if is_largest else value <= best) or value != value
    else:  # two comparisons: of what isn't worse, and NaN compares with nothing
        better = not (value <= best if is_largest else value >= best) and best == best
    return better


@tc.function
def _found(problem: Problem, best: Value, place: Value, axis: int) -> Any:
    """The place of a line's best number, from the best ones and their places.

    Where nothing is better than what workers begin with, all numbers are that, and the first is at 0.
    """
    own, last = best.mapping, problem.last
    peak = tc.reduce(best, axis, PLACES[problem.operator])
    for i, j in own:
        at = (j, i)[axis]
        is_best = best[i, j] == peak[at] or best[i, j] != best[i, j]
        if not is_best or place[i, j] < 0:
            place[i, j] = -1 if last else problem.view[3]
    result = tc.reduce(place, axis, "max" if last else "min")
    for i in result.mapping:
        result[i] = result[i] if last or result[i] < problem.view[3] else 0
    return result
