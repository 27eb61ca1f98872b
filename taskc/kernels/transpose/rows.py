"""Transposes whose last axis stays last: rows are copied."""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.transpose.plan import Rows
from taskc.kernels.transpose.problem import Problem


def rows(problem: Problem, plan: Rows) -> KernelDefinition:
    given, made, seen, own = problem.given, problem.made, problem.extents, plan.own
    source, target = problem.source, problem.target

    @tc.kernel(workers=own.workers)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for i, j, k, col in tc.tiles(seen, by=own.shape):
            for p, q, r, s in own:
                if i + p < seen[0] and j + q < seen[1] and k + r < seen[2] and col + s < seen[3]:
                    place = i + p, j + q, k + r, col + s
                    y[target(place)] = x[source(place)]

    return transpose
