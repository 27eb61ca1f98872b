"""Sum, mean, maximum, minimum and product along any axes.

problem.py is what is computed, plan.py how. Each other file is an algorithm:

fold   by one kernel
parts  of what is folded into few numbers: parts of it, whose results are folded by a second kernel
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, ProgramDefinition, f32
from taskc.kernels.reductions.fold import fold
from taskc.kernels.reductions.parts import in_parts
from taskc.kernels.reductions.plan import Fold, Parts, candidates
from taskc.kernels.reductions.problem import Problem, problem_of
from taskc.tune.choose import choose
from taskc.tune.space import Operator

__all__ = ["Fold", "Parts", "Problem", "build", "reduction"]


def reduction(
    operator: str,
    shape: Sequence[Any],
    axes: Iterable[int],
    *,
    dtype: DType = f32,
    keepdims: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition | ProgramDefinition:
    """Folds the axes with "sum", "mean", "prod", "max" or "min".

    Numbers of 16 bits are folded in f32, and the result is rounded once; integers wrap.

    keepdims  the result has the extent 1 for each axis, where it else has none
    """
    problem = problem_of(operator, shape, axes, dtype, keepdims=keepdims)
    return build(problem, None, machine or tc.machine())


def build(
    problem: Problem, plan: Fold | Parts | None, machine: Machine
) -> KernelDefinition | ProgramDefinition:
    """By this plan, or by the one of least cost."""
    plan = plan or choose(REDUCTION, problem, machine)
    return in_parts(problem, plan) if isinstance(plan, Parts) else fold(problem, plan)


REDUCTION = Operator("reduction", candidates, build, (Fold, Parts))
