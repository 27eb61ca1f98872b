"""An expression of one to four inputs, element by element, as NumPy broadcasts shapes.

problem.py is what is computed, plan.py how, and boxes.py the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, f32
from taskc.kernels.elementwise.boxes import boxes
from taskc.kernels.elementwise.plan import Boxes, candidates
from taskc.kernels.elementwise.problem import Problem, problem_of
from taskc.tune.choose import choose, remembered
from taskc.tune.space import Operator

__all__ = ["Boxes", "Problem", "build", "elementwise"]


def elementwise(
    expression: Callable[..., Any],
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[DType] = (f32,),
    *,
    result: DType | None = None,
    machine: Machine | None = None,
) -> KernelDefinition:
    """y = expression(a, b, ...), with the inputs' shapes and types, and the type of the result.

    expression  a @tc.function, a Python function that could be one, or tc.gelu and its like
    dtypes      one for each input, or one for all
    result      the type of y; the first input's if it is None. The expression's value is converted
    """
    problem = problem_of(expression, shapes, dtypes, result)
    return build(problem, None, machine or tc.machine())


@remembered
def build(problem: Problem, plan: Boxes | None, machine: Machine) -> KernelDefinition:
    """By this plan, or by the one of least cost."""
    return boxes(problem, plan or choose(ELEMENTWISE, problem, machine))


ELEMENTWISE = Operator("elementwise", candidates, build, (Boxes,))
