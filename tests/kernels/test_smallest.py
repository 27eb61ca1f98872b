"""The smallest problem of a plan has of all that the plan tells apart as much as the large one."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

import taskc as tc
from taskc import bf16, f16, f32
from taskc.kernels.matmul import MATMUL, Tiling
from taskc.kernels.matmul.gpu import is_worth_copying
from taskc.tune.space import Space, sample
from tests.kernels.problems import gemm

TYPES = {"sm_80": (f16, f16, f32), "sm_89": (f32, f32, f32), "sm_90a": (bf16, bf16, f32)}


@pytest.mark.each_value
@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize(
    "extents", [(4096, 4096, 4096), (2000, 1000, 4104), (2, 5000, 5000), (600, 4, 70_000)]
)
def test_what_a_plan_tells_apart_stays(target: str, extents: tuple[int, int, int]) -> None:
    problem, machine = gemm(*extents, TYPES[target]), tc.machine(target)
    assert MATMUL.smallest is not None
    for plan in sample(MATMUL.candidates, problem, machine, 25):
        small = MATMUL.smallest(problem, plan, machine)
        for large, few in zip(extents, (small.m, small.n, small.k), strict=True):
            assert few <= large
            assert few % 8 == large % 8  # wide accesses
        assert is_worth_copying(small, machine) == is_worth_copying(problem, machine)
        if isinstance(plan, Tiling):
            check_blocks(plan, problem, small)


def check_blocks(plan: Tiling, problem: Any, small: Any) -> None:
    for block, cluster, large, few in zip(
        plan.block, plan.cluster, (problem.m, problem.n), (small.m, small.n), strict=True
    ):
        assert (few % block == 0) == (large % block == 0)
        assert ceil(few / block) % cluster == ceil(large / block) % cluster
    steps = ceil(small.k / (plan.parts * plan.depth))
    assert steps > plan.stages or small.k == problem.k
    assert (small.k % plan.depth == 0) == (problem.k % plan.depth == 0)


def test_on_a_processor_it_is_the_problem_itself() -> None:
    space = Space(MATMUL, gemm(64, 64, 64, (f32, f32, f32)), tc.machine())
    assert MATMUL.smallest is not None
    assert MATMUL.smallest(space.problem, space.default, space.machine) is space.problem
