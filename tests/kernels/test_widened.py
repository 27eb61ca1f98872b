"""Packed operands of a shorter type: a block of many tiles makes its panel wide once, and the results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, i32
from taskc.kernels.matmul import MATMUL, Panels, matmul
from taskc.kernels.matmul.problem import problem_of
from taskc.tune.choose import choose


@pytest.mark.parametrize("shape", [(37, 50, 33), (16, 1, 1), (64, 48, 96)], ids=str)
@pytest.mark.parametrize(("total", "right"), [(f32, bf16), (f32, f16), (i32, i8)], ids=str)
def test_results_are_the_same_in_both_ways(
    shape: tuple[int, int, int], total: Any, right: Any
) -> None:
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = (random.integers(-90, 90, it).astype(np.float32) for it in ((m, k), (k, n)))
    a, b = a.astype(total.numpy), b.astype(right.numpy)
    for tall in (4, 16):
        plan = Panels(4, 2, tall, tc.machine().lanes)
        problem = problem_of(m, n, k, total, right=right, total=total, packed=True)
        assert plan.widens(problem) == (tall == 16)
        kernel = matmul(m, n, k, dtype=total, right=right, total=total, packed=True, schedule=plan)
        made = kernel(a, kernel.pack(b))
        np.testing.assert_array_equal(made, a.astype(np.int64) @ b.astype(np.int64))


def test_many_rows_are_widened_for_and_few_are_not() -> None:
    plans = {
        m: choose(
            MATMUL, problem_of(m, 768, 768, f32, right=bf16, packed=True), tc.machine("avx512")
        )
        for m in (1, 128)
    }
    widened = {
        m: plan.widens(problem_of(m, 768, 768, f32, right=bf16, packed=True))
        for m, plan in plans.items()
    }
    assert widened == {1: False, 128: True}
