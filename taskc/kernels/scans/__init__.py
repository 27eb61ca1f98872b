"""Sums and products of all elements so far, along any axis.

problem.py is what is computed, plan.py how. Each other file is an algorithm:

lines    along the innermost axis, by a block's workers together
ranges   of few long lines, which are cut, by a program
look_back  of few long lines on a GPU, in one pass
serial   each worker by itself, along any axis
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, ProgramDefinition, f32
from taskc.kernels.scans.lines import lines
from taskc.kernels.scans.look_back import look_back
from taskc.kernels.scans.plan import Lines, LookBack, Plan, Ranges, Serial, candidates
from taskc.kernels.scans.problem import Problem, problem_of
from taskc.kernels.scans.ranges import ranges
from taskc.kernels.scans.serial import serial
from taskc.kernels.signatures import parameters_of
from taskc.tune.choose import choose, remembered
from taskc.tune.space import Operator

__all__ = ["Lines", "LookBack", "Problem", "Ranges", "Serial", "build", "cumprod", "cumsum"]


def cumsum(
    shape: Sequence[Any],
    axis: int,
    *,
    dtype: DType = f32,
    exclusive: bool = False,
    reverse: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition | ProgramDefinition:
    """The sum of each element and those before it along the axis.

    exclusive  without the element itself, so the first is 0
    reverse    of those behind it, from the last one on

    Numbers of 16 bits are added up in f32, and each sum is rounded; integers wrap. In which order sums of floats are
    added up is the plan's: one after another along other axes than the innermost, and there as `tc.scan` does.
    """
    return _scan("sum", **locals())


@parameters_of(cumsum)
def cumprod(**options: Any) -> KernelDefinition | ProgramDefinition:
    """The product of each element and those before it, as `cumsum` has the sum; the first exclusive one is 1."""
    return _scan("prod", **options)


def _scan(
    operator: str, *, machine: Machine | None, **options: Any
) -> KernelDefinition | ProgramDefinition:
    return build(problem_of(operator, **options), None, machine or tc.machine())


@remembered
def build(
    problem: Problem, plan: Plan | None, machine: Machine
) -> KernelDefinition | ProgramDefinition:
    """By this plan, or by the one of least cost."""
    plan = plan or choose(SCAN, problem, machine)
    match plan:
        case Serial():
            return serial(problem, plan)
        case Lines():
            return lines(problem, plan.own)
        case Ranges():
            return ranges(problem, plan)
        case LookBack():
            return look_back(problem, plan)


SCAN = Operator("scan", candidates, build, (Serial, Lines, Ranges, LookBack))
