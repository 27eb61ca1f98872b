"""The panels of batched GEMM on processors, where b's rows lie across them."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc.kernels.matmul.plan import Panels
from taskc.kernels.matmul.problem import Problem
from taskc.programs.squares import columns, lines, quarters


def transposed_panel(problem: Problem, plan: Panels) -> Callable[..., Any]:
    """A panel of b, turned in squares: a function of b, the product's number and the first column."""
    n, k, dtype, of_b = problem.n, problem.k, problem.right, problem.element_of(problem.batch[1])
    lanes, wide = plan.lanes, plan.wide

    @tc.function
    def transposed(b: Any, number: Any, col: Any) -> Any:
        panel = tc.shared(dtype[ceil(k / lanes) * lanes, wide])
        for first in range(0, wide, lanes):
            for q in range(0, k, lanes):
                square = tc.shared(dtype[lanes, lanes])
                for j, p in lines(lanes):
                    square[j, p] = (
                        b[of_b(number, col + first + j, q + p)]
                        if col + first + j < n and q + p < k
                        else 0
                    )
                part = quarters(square)
                for p1, p0, j1, j0 in columns(lanes):
                    panel[q + 4 * p1 + p0, first + 4 * j1 + j0] = part[p0, j1, p1, j0]
        return panel

    return transposed
