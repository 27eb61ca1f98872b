"""A scan of few long lines: each is cut into ranges, whose blocks begin with the sum of those before.

All ranges but the last are added up first, in chunks that all threads share; with two ranges that is half of the array.
"""

from __future__ import annotations

import taskc as tc
from taskc import ProgramDefinition
from taskc.kernels.scans.lines import chunk_sums, lines
from taskc.kernels.scans.plan import Ranges
from taskc.kernels.scans.problem import Problem


def ranges(problem: Problem, plan: Ranges) -> ProgramDefinition:
    given = problem.given.as_given
    outer, along, _ = problem.given.shape
    step = plan.own.shape[1]
    chunk = step * tc.cdiv(along, plan.ranges * plan.chunks * step)
    size = plan.chunks * chunk
    between = problem.wide[outer, (tc.cdiv(along, size) - 1) * plan.chunks]
    add_up = chunk_sums(problem, plan.own, chunk, between)
    scan = lines(problem, plan.own, size, between)

    @tc.program
    def cumsum(x: tc.typed[given], y: tc.out[given]) -> None:
        sums = tc.empty(between)
        add_up(x, out=sums)
        scan(x, sums, out=y)

    return cumsum
