"""Sums and products of all elements so far, along any axis.

problem.py is what is computed, plan.py how, and serial.py the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, f32
from taskc.kernels.scans.plan import Serial, candidates
from taskc.kernels.scans.problem import Problem, problem_of
from taskc.kernels.scans.serial import serial
from taskc.tune.choose import choose
from taskc.tune.remembered import remembered
from taskc.tune.space import Operator

__all__ = ["Problem", "Serial", "build", "cumprod", "cumsum"]


def cumsum(
    shape: Sequence[Any],
    axis: int,
    *,
    dtype: DType = f32,
    exclusive: bool = False,
    reverse: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition:
    """The sum of each element and those before it along the axis, added up in this order.

    exclusive  without the element itself, so the first is 0
    reverse    of those behind it, from the last one on

    Numbers of 16 bits are added up in f32, and each sum is rounded; integers wrap.
    """
    problem = problem_of("sum", shape, axis, dtype, exclusive=exclusive, reverse=reverse)
    return build(problem, None, machine or tc.machine())


def cumprod(
    shape: Sequence[Any],
    axis: int,
    *,
    dtype: DType = f32,
    exclusive: bool = False,
    reverse: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition:
    """The product of each element and those before it, as `cumsum` has the sum; the first exclusive one is 1."""
    problem = problem_of("prod", shape, axis, dtype, exclusive=exclusive, reverse=reverse)
    return build(problem, None, machine or tc.machine())


@remembered
def build(problem: Problem, plan: Serial | None, machine: Machine) -> KernelDefinition:
    """By this plan, or by the one of least cost."""
    return serial(problem, plan or choose(SCAN, problem, machine))


SCAN = Operator("scan", candidates, build, (Serial,))
