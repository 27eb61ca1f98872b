"""Plans as data: all of a problem's can be listed, each has a key, and none changes what is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, i32
from taskc.checking import examine, examine_program
from taskc.kernels.choose import choose, plans, sample
from taskc.kernels.matmul import build, packs
from taskc.kernels.matmul.batches import batches
from taskc.kernels.matmul.plan import candidates, candidates_of_batches, candidates_of_packs
from taskc.machine import Machine
from tests.kernels.problems import gemm

HERE = tc.machine()
SPACES = [
    (candidates, gemm(33, 70, 50, (f32, f32, f32), bias=True), HERE),
    (candidates, gemm(5, 70, 50, (f32, f32, f32)), HERE),
    (candidates, gemm(5, 70, 50, (f32, f32, f32), transpose_b=True), HERE),
    (candidates, gemm(tc.dim("m"), 70, 50, (f32, f32, f32)), HERE),
    (candidates_of_packs, gemm(33, 70, 50, (i8, i8, i32)), HERE),
    (candidates_of_batches, gemm(33, 70, 50, (f32, f32, f32), batch=((3,), (3,))), HERE),
    (candidates, gemm(40, 70, 520, (f16, f16, f32)), tc.machine("sm_80")),
    (candidates, gemm(3, 70, 520, (f16, f16, f32), bias=True), tc.machine("sm_80")),
    (candidates, gemm(70, 64, 264, (bf16, bf16, f32)), tc.machine("sm_90a")),
]  # fmt: skip


@pytest.mark.parametrize(("space", "problem", "machine"), SPACES)
def test_plans_are_listed_once_each(space: Any, problem: Any, machine: Machine) -> None:
    found = list(plans(space, problem, machine))
    assert len(found) > 1
    assert len({str(plan) for plan in found}) == len(set(found)) == len(found)
    best = choose(space, problem, machine)
    assert best in found
    assert best.cost(problem, machine) == min(plan.cost(problem, machine) for plan in found) > 0
    some = sample(space, problem, machine, 3)
    assert some == sample(space, problem, machine, 3)
    assert len(some) == min(3, len(found))
    assert set(some) <= set(found)


@pytest.mark.parametrize(("space", "problem", "machine"), SPACES)
def test_no_plan_changes_the_result(space: Any, problem: Any, machine: Machine) -> None:
    random = np.random.default_rng(1)
    a, b, offsets, _ = (
        random.integers(-2, 3, tuple(17 if not isinstance(n, int) else n for n in x.shape))
        .astype(x.dtype.numpy)
        for x in problem.types
    )  # fmt: skip
    right = b.T if problem.transpose_b else b
    exact = a.astype(np.float64) @ right.astype(np.float64) + (offsets if problem.bias else 0)
    arguments = [a, b, offsets] if problem.bias else [a, b]
    makes = {candidates_of_packs: packs, candidates_of_batches: batches}
    for plan in sample(space, problem, machine, 4):
        if machine.is_processor:
            make = makes.get(space)
            made = make(problem, plan) if make else build(problem, plan, machine)
            np.testing.assert_array_equal(made(*arguments), exact, err_msg=str(plan))
            continue
        target = "sm_80" if machine == tc.machine("sm_80") else "sm_90a"
        definition = build(problem, plan, machine)
        if isinstance(definition, tc.ProgramDefinition):
            examined = examine_program(definition, arguments, stages=("lean",), target=target)
            result, findings = examined.calls[-1].results[-1], examined.findings
        else:
            call = examine(definition, arguments, stages=("lean",), target=target)
            result, findings = call.results[-1], call.findings
        assert not [finding for finding in findings if finding.severity == "error"], str(plan)
        np.testing.assert_array_equal(result, exact, err_msg=str(plan))
