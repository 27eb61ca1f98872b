"""Transposes on processors: the last axis of the input and that of the output span squares of as many rows as there
are lanes, each of which is turned in registers. The squares of a block share their cache lines on both sides.
"""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.transpose.plan import Squares
from taskc.kernels.transpose.problem import RANK, Problem
from taskc.programs.squares import columns, lines, quarters


def squares(problem: Problem, plan: Squares) -> KernelDefinition:
    given, made, seen, across = problem.given, problem.made, problem.extents, problem.across
    source, target, replaced = problem.source, problem.target, problem.replaced
    lanes, (height, width) = plan.lanes, (seen[across], seen[-1])
    by = [1] * RANK
    by[across], by[-1] = plan.tall * lanes, plan.wide * lanes

    @tc.kernel(workers=lanes)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, c, d in tc.tiles(seen, by=by):
            for p in range(plan.tall):
                for q in range(plan.wide):
                    square = tc.shared(problem.dtype[lanes, lanes])
                    row, col = (a, b, c)[across] + p * lanes, d + q * lanes
                    if row + lanes > height or col + lanes > width:
                        for i, j in lines(lanes):
                            square[i, j] = problem.outside
                    for i, j in lines(lanes):
                        if row + i < height and col + j < width:
                            square[i, j] = x[source(replaced(a, b, c, row + i, col + j))]
                    part = quarters(square)
                    for c1, c0, r1, r0 in columns(lanes):
                        if row + 4 * r1 + r0 < height and col + 4 * c1 + c0 < width:
                            place = replaced(a, b, c, row + 4 * r1 + r0, col + 4 * c1 + c0)
                            y[target(place)] = part[c0, r1, c1, r0]

    return transpose
