"""The axes of a tensor in any other order.

problem.py is what is computed, plan.py how. Each other file is an algorithm:

rows     where the last axis stays last: rows are copied
squares  on processors: squares of as many rows as there are lanes, turned in registers
tiles    on GPUs: small squares turned in registers, whose rows are exchanged through shared memory
runs     on GPUs: short rows that end within an access, taken as one run
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, f32
from taskc.kernels.transpose.plan import Rows, Runs, Squares, Tiles, candidates
from taskc.kernels.transpose.problem import Problem, problem_of
from taskc.kernels.transpose.rows import rows
from taskc.kernels.transpose.runs import runs
from taskc.kernels.transpose.squares import squares
from taskc.kernels.transpose.tiles import tiles
from taskc.tune.choose import choose, remembered
from taskc.tune.space import Operator

__all__ = ["Problem", "Rows", "Runs", "Squares", "Tiles", "build", "transpose"]


def transpose(
    shape: Sequence[Any],
    order: Sequence[int] | None = None,
    *,
    dtype: DType = f32,
    machine: Machine | None = None,
) -> KernelDefinition:
    """y's axis number k is x's axis order[k]; by default the axes are reversed."""
    return build(problem_of(shape, order, dtype), None, machine or tc.machine())


@remembered
def build(
    problem: Problem, plan: Rows | Squares | Tiles | Runs | None, machine: Machine
) -> KernelDefinition:
    """By this plan, or by the one of least cost."""
    plan = plan or choose(TRANSPOSE, problem, machine)
    if isinstance(plan, Rows):
        return rows(problem, plan)
    if isinstance(plan, Squares):
        return squares(problem, plan)
    if isinstance(plan, Runs):
        return runs(problem, plan)
    return tiles(problem, plan, machine)


TRANSPOSE = Operator("transpose", candidates, build, (Rows, Runs, Squares, Tiles))
