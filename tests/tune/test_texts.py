"""Problems and plans as text: the same in all runs, parsed and never evaluated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

import taskc as tc
from taskc import bf16, f32, i8, repeat, spatial
from taskc.kernels.attention import ATTENTION, Problem as Attention
from taskc.kernels.convolution import CONVOLUTION
from taskc.kernels.convolution.problem import problem_of as convolution_problem
from taskc.kernels.matmul import BATCH_MATMUL, MATMUL, PRODUCT
from taskc.kernels.transpose import TRANSPOSE, problem_of as transpose_problem
from taskc.tune.rows import TextError, parts, plan_of, text_of
from taskc.tune.space import Operator, Space
from tests.kernels.problems import gemm

HERE = tc.machine()


def convolved(**options: Any) -> Any:
    return convolution_problem(
        1, (9, 9), 16, 32,
        size=3, stride=1, padding=1, dilation=1, groups=1, order="NHWC", filters="OHWI", bias=False,
        scale=False, residual=False, activation=None, dtype=f32, total=None, result=None,
        lanes=HERE.lanes, **options,
    )  # fmt: skip


SPACES: list[tuple[Operator[Any, Any], Any]] = [
    (MATMUL, gemm(33, 70, 50, (f32, f32, f32), bias=True)),
    (MATMUL, gemm(tc.dim("m"), 70, 50, (f32, f32, f32))),
    (BATCH_MATMUL, gemm(33, 70, 50, (f32, f32, f32), batch=((3,), (3,)))),
    (PRODUCT, gemm(33, 70, 50, (bf16, bf16, f32))),
    (CONVOLUTION, convolved(packed=True)),
    (CONVOLUTION, convolved(packed=True, exact=False)),
    (ATTENTION, Attention(1, 2, 1, 20, 40, 16, 16, None, None, 0.25, f32)),
    (TRANSPOSE, transpose_problem((50, 60), None, f32)),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "problem"), SPACES)
def test_each_plan_is_read_back_from_its_text(operator: Operator[Any, Any], problem: Any) -> None:
    space = Space(operator, problem, HERE)
    texts = [space.text(plan) for plan in space.plans]
    assert len(set(texts)) == len(texts) > 1
    assert [operator.plan(text) for text in texts] == list(space.plans)
    assert "\n" not in space.problem_text


@pytest.mark.parametrize(("machine"), ["sm_80", "sm_90a"])
def test_plans_of_gpus_too(machine: str) -> None:
    space = Space(MATMUL, gemm(70, 64, 264, (bf16, bf16, f32)), tc.machine(machine))
    for plan in space.plans[::20]:
        assert MATMUL.plan(space.text(plan)) == plan


def test_texts_are_the_same_in_all_runs() -> None:
    problem = gemm(33, 70, 50, (i8, i8, tc.i32), activation=tc.gelu)
    assert json.loads(text_of(problem)) == {
        "is": "Problem", "m": 33, "n": 70, "k": 50,
        "dtype": {"is": "type", "name": "i8"}, "right": {"is": "type", "name": "i8"},
        "total": {"is": "type", "name": "i32"}, "result": {"is": "type", "name": "i32"},
        "activation": {"is": "function", "name": "taskc.lang.names.gelu"},
    }  # fmt: skip


@dataclass(frozen=True)
class Small:
    own: Any
    depth: int = 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "3",
        "[]",
        '{"is": "Other"}',
        '{"is": "Small"}',
        '{"is": "Small", "own": 1, "wide": 2}',
        '{"is": "Small", "own": {"is": "mapping", "text": "__import__(\'os\')"}}',
        '{"is": "Small", "own": {"is": "type", "name": "f31"}}',
        '{"is": "type", "name": "f32"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(TextError, match="no plan"):
        plan_of(text, {"Small": Small})


def test_choices_by_name() -> None:
    own = repeat(2) * spatial(4)
    assert parts(text_of(Small((own, 3), 8))) == {
        "is": "Small", "own.0": str(own), "own.1": 3, "depth": 8,
    }  # fmt: skip
    assert "depth" not in parts(text_of(Small(own))), "a default needs no text"
    named = parts(text_of(Small((("bk", 8), ("own", own)))))
    assert named == {"is": "Small", "own.bk": 8, "own.own": str(own)}
