"""Where the largest or the smallest number along an axis is.

Each worker keeps the best number that it has met, and its place; along a row, in which step that was, which is one
number for all workers. Those of the workers who go along the axis side by side are compared at the end: of the best
ones the first place, or the last. NaN is better than any number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, i32, i64
from taskc.kernels.reductions.plan import Fold
from taskc.kernels.reductions.problem import PLACES, Problem

Function = Callable[..., Any]


def places(problem: Problem, plan: Fold) -> KernelDefinition:
    make = _rows if problem.has_rows else _columns
    return make(problem, plan, _is_better(problem), _found(problem))


def _columns(
    problem: Problem, plan: Fold, is_better: Function, found: Function
) -> KernelDefinition:
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
                        better = is_better(value, best[i, j])
                        best[i, j] = value if better else best[i, j]
                        place[i, j] = (q + i).to(index) if better else place[i, j]
            result = found(best, place, 0)
            for j in result.mapping:
                if col + j < inner:
                    y[0, 0, b, 0, col + j] = result[j].to(i64)

    return places


def _rows(problem: Problem, plan: Fold, is_better: Function, found: Function) -> KernelDefinition:
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
                        better = is_better(value, best[i, j])
                        best[i, j] = value if better else best[i, j]
                        place[i, j] = index(turn) if better else place[i, j]
            for i, j in own:  # where nothing was better, it stays below 0
                place[i, j] = place[i, j] * step + j.to(index)
            result = found(best, place, 1)
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


def _is_better(problem: Problem) -> Function:
    """Whether a number's place takes that of the best number before it."""
    is_largest, last = problem.operator == "argmax", problem.last

    @tc.function
    def is_better(value: Any, best: Any) -> Any:
        if not problem.wide.is_float:
            better = value > best if is_largest else value < best
            better = better or (last and value == best)
        elif last:
            better = (value >= best if is_largest else value <= best) or value != value
        else:  # two comparisons: of what isn't worse, and NaN compares with nothing
            better = not (value <= best if is_largest else value >= best) and best == best
        return better

    return is_better


def _found(problem: Problem) -> Function:
    """The place of a line's best number, from the best ones and their places.

    Where nothing is better than what workers begin with, all numbers are that, and the first is at 0.
    """
    extreme, along, last = PLACES[problem.operator], problem.view[3], problem.last

    @tc.function
    def found(best: Any, place: Any, axis: Any) -> Any:
        own = best.mapping
        peak = tc.reduce(best, axis, extreme)
        for i, j in own:
            at = (j, i)[axis]
            is_best = best[i, j] == peak[at] or best[i, j] != best[i, j]
            if not is_best or place[i, j] < 0:
                place[i, j] = -1 if last else along
        result = tc.reduce(place, axis, "max" if last else "min")
        for i in result.mapping:
            result[i] = result[i] if last or result[i] < along else 0
        return result

    return found
