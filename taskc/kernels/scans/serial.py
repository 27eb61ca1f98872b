"""A scan whose elements are folded one after another, each line's by one worker; neighbours have neighbouring lines."""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.scans.plan import Serial
from taskc.kernels.scans.problem import Problem


def serial(problem: Problem, plan: Serial) -> KernelDefinition:
    given, wide, own = problem.given, problem.wide, plan.own
    outer, along, inner = given.shape
    folded = problem.folded

    @tc.kernel(workers=own.workers)
    def scan(x: tc.typed[given], y: tc.out[given]) -> None:
        for a, col in tc.tiles((outer, inner), by=own.shape):
            total = tc.tile(wide, own, problem.start)
            for step in range(along):
                q = along - 1 - step if problem.reverse else step
                for i, j in own:
                    if a + i < outer and col + j < inner:
                        more = folded(total[i, j], x[a + i, q, col + j].to(wide))
                        y[a + i, q, col + j] = (total[i, j] if problem.exclusive else more).to(
                            given.dtype
                        )
                        total[i, j] = more

    return scan
