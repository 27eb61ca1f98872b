"""The smallest problem that a plan computes as it does a large one: a simulator runs it in a second or two.

What is left over of a block, a step of k or a wide access is what it was, and there are more steps than stages.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from taskc import Machine
from taskc.kernels.machine_facts import GPU
from taskc.kernels.matmul.padded import is_worth_copying
from taskc.kernels.matmul.plan import FewRows, Panels
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors, are_rows
from taskc.kernels.matmul.problem import Extent, Problem


def smallest(
    problem: Problem, plan: Tiling | Vectors | Panels | FewRows, machine: Machine
) -> Problem:
    """A block, or a cluster of blocks, and a few steps of each part of k; on a processor the problem as it is."""
    least = GPU.shortest_copied_extent if is_worth_copying(problem, machine) else 1

    def fewer(extent: Extent, step: int, count: int = 1) -> Extent:
        count = max(count, ceil(least / step))
        if not isinstance(extent, int) or extent <= count * step:
            return extent
        return count * step + extent % step

    m, n, k = problem.m, problem.n, problem.k
    if isinstance(plan, Tiling):
        (high, broad), (tall, wide) = plan.block, plan.cluster
        k = fewer(k, plan.parts * plan.depth, plan.stages + 1)
        return replace(problem, m=fewer(m, tall * high), n=fewer(n, wide * broad), k=k)
    if isinstance(plan, Vectors):
        length, steps = plan.matrix.shape
        k = fewer(k, plan.parts * steps, 2)
        if are_rows(problem):
            return replace(problem, n=fewer(n, length), k=k)
        return replace(problem, m=fewer(m, length), k=k)
    return problem
