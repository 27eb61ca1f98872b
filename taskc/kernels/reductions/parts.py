"""A reduction to few numbers: parts are folded by blocks of their own, and a second kernel folds what they give."""

from __future__ import annotations

import taskc as tc
from taskc import ProgramDefinition
from taskc.kernels.reductions.fold import fold
from taskc.kernels.reductions.plan import Parts, in_two
from taskc.kernels.reductions.problem import Problem


def in_parts(problem: Problem, plan: Parts) -> ProgramDefinition:
    outer, _, middle, along, inner = problem.view
    first, second = in_two(problem)
    partial, combine = fold(first, plan.partial, plan.size), fold(second, plan.rest)
    source, result = problem.given.as_given, problem.made.as_given

    @tc.program
    def reduction(x: source, y: tc.out[result]):
        between = tc.empty(problem.wide[outer, 1, middle, tc.cdiv(along, plan.size), inner])
        partial(x, out=between)
        combine(between, out=y)

    return reduction
