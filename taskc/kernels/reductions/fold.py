"""A reduction by one kernel, of all elements or of parts of them.

Where the innermost axis is kept, neighbouring workers have neighbouring columns; where it is folded, they walk
along it, and fold what each has found at the end. On GPUs a block has several rows, or its workers several
elements of each column.
"""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.reductions.plan import Fold
from taskc.kernels.reductions.problem import OPERATORS, Problem


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
