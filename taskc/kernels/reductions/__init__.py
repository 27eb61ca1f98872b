"""Sum, mean, maximum, minimum and product along any axes, and where a maximum or a minimum is.

problem.py is what is computed, plan.py how. algorithms.py has:

fold    by one kernel
parts   in two steps: of what is folded into few numbers, parts; of many groups of axes, the last two
places  of the largest or the smallest number, by one kernel
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, ProgramDefinition, f32
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.reductions.algorithms import fold, in_parts, in_turn, places
from taskc.kernels.reductions.plan import Fold, Parts, candidates
from taskc.kernels.reductions.problem import (
    PLACES,
    Problem,
    folded_axes,
    kept,
    last_two_groups,
    problem_of,
    problem_of_places,
)
from taskc.kernels.signatures import parameters_of, wide

__all__ = ["Fold", "Parts", "Problem", "argmax", "argmin", "build", "reduction"]


def reduction(
    operator: str,
    shape: Sequence[Any],
    axes: Iterable[int],
    *,
    dtype: DType = f32,
    keepdims: bool = False,
    result: DType | None = None,
    machine: Machine | None = None,
) -> KernelDefinition | ProgramDefinition:
    """Folds the axes with "sum", "mean", "prod", "max" or "min".

    Numbers of 16 bits are folded in f32, and the result is rounded once; integers wrap.

    keepdims  the result has the extent 1 for each axis, where it else has none
    result    the type of the result; that of the numbers if it is None
    """
    folded = folded_axes(len(shape), axes)
    first, machine = last_two_groups(shape, folded), machine or tc.machine()
    left = [1 if axis in first else extent for axis, extent in enumerate(shape)]
    if not last_two_groups(left, folded):
        problem = problem_of(operator, shape, axes, dtype, keepdims=keepdims, result=result)
        return build(problem, None, machine)
    between, result = wide(dtype), result or dtype
    types = (
        dtype[tuple(shape)],
        between[tuple(left)],
        result[kept(shape, folded, keepdims=keepdims)],
    )
    fold = partial(reduction, operator, machine=machine)
    return in_turn(
        fold(shape, first, dtype=dtype, keepdims=True, result=between),
        fold(left, folded, dtype=between, keepdims=keepdims, result=result),
        types,
    )


def argmax(
    shape: Sequence[Any],
    axis: int,
    *,
    dtype: DType = f32,
    keepdims: bool = False,
    last: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition | ProgramDefinition:
    """Where along the axis the largest number is, as i64: the first of several, or the last one. NaN counts as such."""
    return REDUCTION(operator="argmax", **locals())


@parameters_of(argmax)
def argmin(**options: Any) -> KernelDefinition | ProgramDefinition:
    """The same of the smallest number."""
    return REDUCTION(operator="argmin", **options)


def _by_one_kernel(problem: Problem, plan: Fold) -> KernelDefinition:
    return (places if problem.operator in PLACES else fold)(problem, plan)


REDUCTION: KernelOperator[Problem, Fold | Parts, KernelDefinition | ProgramDefinition] = operator(
    "reduction", problem_of_places, candidates, {Fold: _by_one_kernel, Parts: in_parts}
)
build = REDUCTION.build
