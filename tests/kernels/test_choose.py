"""Plans as data: all of a problem's can be listed, each has a key, and none changes what is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, i32
from taskc.kernels import (
    attention,
    convolution,
    pooling,
    reductions,
    rows,
    scans,
    transpose,
)  # fmt: skip
from taskc.kernels.attention.plan import candidates as attention_plans
from taskc.kernels.convolution.plan import candidates as convolution_plans
from taskc.kernels.matmul import build
from taskc.kernels.matmul.panels import packs, panels
from taskc.kernels.matmul.plan import candidates, candidates_of_batches, candidates_of_packs
from taskc.kernels.pooling.plan import candidates as pooling_plans
from taskc.kernels.pooling.problem import problem_of as pooling_problem
from taskc.kernels.reductions.plan import candidates as reduction_plans
from taskc.kernels.reductions.problem import problem_of as reduction_problem, problem_of_places
from taskc.kernels.rows.plan import candidates as row_plans
from taskc.kernels.scans import candidates as scan_plans, problem_of as scan_problem
from taskc.kernels.transpose import candidates as transpose_plans, problem_of as transpose_problem
from taskc.kernels.windows import Windows
from taskc.runtime.checking import examine
from taskc.runtime.machine import Machine
from taskc.tune.space import least, plans, sample
from tests.kernels.problems import gemm

HERE = tc.machine()
SPACES = [
    (candidates, gemm(33, 70, 50, (f32, f32, f32), bias=True), HERE),
    (candidates, gemm(5, 70, 50, (f32, f32, f32)), HERE),
    (candidates, gemm(5, 70, 50, (f32, f32, f32), transpose_b=True), HERE),
    (candidates, gemm(tc.dim("m"), 70, 50, (f32, f32, f32)), HERE),
    (candidates_of_packs, gemm(33, 70, 50, (i8, i8, i32)), HERE),
    (candidates_of_batches, gemm(33, 70, 50, (f32, f32, f32), batch=((3,), (3,))), HERE),
    (candidates, gemm(40, 70, 264, (f16, f16, f32)), tc.machine("sm_80")),
    (candidates, gemm(3, 70, 520, (f16, f16, f32), bias=True), tc.machine("sm_80")),
    (candidates, gemm(70, 64, 264, (bf16, bf16, f32)), tc.machine("sm_90a")),
]  # fmt: skip


def attended(length: Any) -> attention.Problem:
    """By two heads, in f32."""
    return attention.Problem(1, 2, 1, length, 40, 16, 16, None, None, 0.25, f32)


def convolved(groups: int, dtype: tc.DType) -> convolution.Problem:
    return convolution.Problem(
        1, (9, 9), 8, 8, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), groups, "NHWC", "NHWC", "OHWI", None, False,
        dtype, dtype, f32, dtype,
    )  # fmt: skip


def pooled(operator: str, channels: int, order: str) -> pooling.Problem:
    return pooling_problem(
        operator=operator, images=2, extents=(9, 30), channels=channels, order=order, dtype=f32, lanes=16,
        windows=Windows.of(2, size=3, stride=2),
    )  # fmt: skip


OTHERS = [
    (attention_plans, attended(20), HERE),
    (attention_plans, attended(2), HERE),
    (attention_plans, attended(tc.dim("length")), HERE),
    (attention_plans, attended(20), tc.machine("sm_80")),
    (convolution_plans, convolved(8, f32), HERE),
    (convolution_plans, convolved(2, f16), tc.machine("sm_80")),
    (convolution_plans, convolved(8, f16), tc.machine("sm_90a")),
    (convolution_plans, convolved(1, f16), tc.machine("sm_90a")),
]


def softmaxed(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def normalized(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * scale + shift


def of_rows(function: str, m: int, n: int, **options: Any) -> rows.Problem:
    return rows.Problem(function=function, m=m, n=n, dtype=f32, **options)


def windows(x: Any, axes: tuple[int, int]) -> Any:
    """Each second one of 3 by 3, along both axes."""
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axes)
    return seen[tuple(slice(None, None, 2 if axis in axes else 1) for axis in range(4))]


NORM = {"scaled": True, "shifted": True}
# Those that memory bounds: operator, space, problem, shapes of the arguments, what NumPy says, and within what.
STREAMED: list[tuple[Any, Any, Any, Any, Any, float]] = [
    (rows, row_plans, of_rows("softmax", 21, 50), [(21, 50)], softmaxed, 1e-6),
    (rows, row_plans, of_rows("log_softmax", 3, 300), [(3, 300)], lambda x: np.log(softmaxed(x)), 1e-5),
    (rows, row_plans, of_rows("layer_norm", 5, 70, **NORM), [(5, 70), (70,), (70,)], normalized, 1e-5),
    (rows, row_plans, of_rows("softmax", 3, 21, inner=1500), [(3, 21, 1500)], softmaxed, 1e-6),
    (rows, row_plans, of_rows("log_softmax", 3, 21, inner=1500), [(3, 21, 1500)],
     lambda x: np.log(softmaxed(x)), 1e-5),
    (reductions, reduction_plans, problem_of_places("argmax", (30, 700), 1, f32, keepdims=False, last=False),
     [(30, 700)], lambda x: x.argmax(1), 0),
    (reductions, reduction_plans, problem_of_places("argmin", (700, 30), 0, f32, keepdims=False, last=False),
     [(700, 30)], lambda x: x.argmin(0), 0),
    (scans, scan_plans, scan_problem("sum", (9, 1500), 0, f32, exclusive=False, reverse=False), [(9, 1500)],
     lambda x: x.cumsum(0), 0),
    (reductions, reduction_plans, reduction_problem("sum", (70_000,), (0,), f32, keepdims=False),
     [(70_000,)], np.sum, 0),
    (reductions, reduction_plans, reduction_problem("sum", (3, 200_000), (1,), f32, keepdims=False),
     [(3, 200_000)], lambda x: x.sum(1), 0),
    (reductions, reduction_plans, reduction_problem("max", (3, 700, 40), (1,), f32, keepdims=True),
     [(3, 700, 40)], lambda x: x.max(1, keepdims=True), 0),
    (transpose, transpose_plans, transpose_problem((50, 60), None, f32), [(50, 60)], np.transpose, 0),
    (transpose, transpose_plans, transpose_problem((2, 49, 64), (0, 2, 1), f32), [(2, 49, 64)],
     lambda x: x.swapaxes(1, 2), 0),
    (transpose, transpose_plans, transpose_problem((2, 3, 70), (1, 0, 2), f32), [(2, 3, 70)],
     lambda x: x.swapaxes(0, 1), 0),
    (pooling, pooling_plans,
     pooled("average", 37, "NHWC"),
     [(2, 9, 30, 37)], lambda x: windows(x, (1, 2)).mean((4, 5)), 1e-6),
    (pooling, pooling_plans,
     pooled("max", 7, "NCHW"),
     [(2, 7, 9, 30)], lambda x: windows(x, (2, 3)).max((4, 5)), 0),
]  # fmt: skip
OTHERS += [
    (space, problem, tc.machine(target))
    for _, space, problem, *_ in STREAMED
    for target in (None, "sm_80")
]


@pytest.mark.parametrize(("space", "problem", "machine"), [*SPACES, *OTHERS])
def test_plans_are_listed_once_each(space: Any, problem: Any, machine: Machine) -> None:
    found = list(plans(space, problem, machine))
    assert len(found) > 1
    assert len({str(plan) for plan in found}) == len(set(found)) == len(found)
    best = least(space, problem, machine)
    assert best in found
    costs = [plan.cost(problem, machine) for plan in space(problem, machine)]
    assert best.cost(problem, machine) == min(costs) > 0
    some = sample(space, problem, machine, 3)
    assert some == sample(space, problem, machine, 3)
    assert len(some) == min(3, len(found))
    assert set(some) <= set(found)


@pytest.mark.parametrize(("space", "problem", "machine"), SPACES)
def test_no_plan_changes_the_result(space: Any, problem: Any, machine: Machine) -> None:
    random = np.random.default_rng(1)
    left, other, offsets, _ = problem.types
    shapes = [
        (x.dtype, tuple(n if isinstance(n, int) else 17 for n in x.shape))
        for x in (left, other, *offsets)
    ]
    arguments = [random.integers(-2, 3, shape).astype(dtype.numpy) for dtype, shape in shapes]
    a, b, *rest = (x.astype(np.float64) for x in arguments)
    exact = a @ (b.T if problem.transpose_b else b) + (rest[0] if rest else 0)
    makes = {candidates_of_packs: packs, candidates_of_batches: panels}
    for plan in sample(space, problem, machine, 2):
        if machine.is_processor:
            make = makes.get(space)
            made = make(problem, plan) if make else build(problem, plan, machine)
            np.testing.assert_array_equal(made(*arguments), exact, err_msg=str(plan))
            continue
        target = "sm_80" if machine == tc.machine("sm_80") else "sm_90a"
        result = simulated(build(problem, plan, machine), arguments, target, str(plan))
        np.testing.assert_array_equal(result, exact, err_msg=str(plan))


def simulated(definition: Any, arguments: list[Any], target: str, plan: str) -> Any:
    examined = examine(definition, arguments, stages=("lean",), target=target)
    assert examined.ok, plan
    return examined.calls[-1].results[-1]


@pytest.mark.each_value
@pytest.mark.parametrize("target", [None, "sm_80"], ids=str)
@pytest.mark.parametrize(("operator", "space", "problem", "shapes", "exact", "bound"), STREAMED)
def test_no_plan_of_what_memory_bounds_changes_the_result(
    operator: Any, space: Any, problem: Any, shapes: Any, exact: Any, bound: float, target: Any
) -> None:
    random, machine = np.random.default_rng(3), tc.machine(target)
    arguments = [random.integers(-2, 3, shape).astype(np.float32) for shape in shapes]
    expected = exact(*(x.astype(np.float64) for x in arguments))
    chosen = least(space, problem, machine)
    for plan in [chosen, *sample(space, problem, machine, 3)]:
        made = operator.build(problem, plan, machine)
        result = simulated(made, arguments, target, str(plan)) if target else made(*arguments)
        shaped = np.asarray(result).reshape(expected.shape)
        np.testing.assert_allclose(shaped, expected, rtol=0, atol=bound, err_msg=str(plan))


@pytest.mark.parametrize("length", [2, 20])
def test_no_plan_of_attention_changes_more_than_rounding(length: int) -> None:
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (length, 40, 40))
    scores = np.exp(q.astype(np.float64) @ k.swapaxes(2, 3) * 0.25)
    exact = scores / scores.sum(3, keepdims=True) @ v
    problem = attended(length)
    for plan in sample(attention_plans, problem, HERE, 4):
        made = attention.build(problem, plan, HERE)(q, k, v)
        np.testing.assert_allclose(made, exact, atol=1e-5, err_msg=str(plan))
