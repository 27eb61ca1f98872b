"""Reductions in two steps, of which the second folds what the first one gives.

Where many numbers become few, parts are folded by blocks of their own. Axes in more than two groups are folded in turn.
"""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition, ProgramDefinition, TensorType
from taskc.kernels.reductions.fold import fold
from taskc.kernels.reductions.plan import Parts, in_two
from taskc.kernels.reductions.problem import Problem


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
