"""A scan along the innermost axis whose workers go over a line together.

Each step scans as much of a line as the block's workers have, and takes in the sum of all before it. Backwards the
line is read from its end on; exclusively each place takes the element before it.
"""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition, spatial
from taskc.kernels.scans.plan import Lines
from taskc.kernels.scans.problem import Problem


def lines(problem: Problem, plan: Lines) -> KernelDefinition:
    given, wide, own = problem.given, problem.wide, plan.own
    outer, along, _ = given.shape
    rows, step = own.shape
    behind = 1 if problem.exclusive else 0  # how far the element lies behind its place

    @tc.kernel(workers=own.workers)
    def cumsum(x: tc.typed[given], y: tc.out[given]) -> None:
        for a in tc.tiles(outer, by=rows):
            before = tc.shared(wide[rows])
            for w in spatial(own.workers):
                if w < rows:
                    before[w] = problem.start
            for at in range(0, along, step):
                t = tc.tile(wide, own, problem.start)
                for i, j in own:
                    p = at + j - behind
                    if a + i < outer and p >= 0 and p < along:
                        t[i, j] = x[a + i, along - 1 - p if problem.reverse else p, 0].to(wide)
                sums = tc.scan(t, 1, "+")
                for i, j in own:
                    sums[i, j] += before[i]
                    p = at + j
                    if a + i < outer and p < along:
                        place = along - 1 - p if problem.reverse else p
                        y[a + i, place, 0] = sums[i, j].to(given.dtype)
                for i, j in own:
                    if j == step - 1:
                        before[i] = sums[i, j]

    return cumsum
