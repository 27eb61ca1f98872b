"""Softmax and normalizations of rows whose elements aren't neighbours.

A block has neighbouring rows, each worker its own ones, and goes over them two or three times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.rows.plan import Columns
from taskc.kernels.rows.problem import Problem

Function = Callable[..., Any]


def columns(problem: Problem, plan: Columns) -> KernelDefinition:
    block = (_softmax if problem.has_peak else _normalization)(problem, plan)
    return problem.kernel(plan.own, plan.own.shape[0], block)


def _softmax(problem: Problem, plan: Columns) -> Function:
    n, inner, dtype, wide, own = problem.n, problem.inner, problem.dtype, problem.wide, plan.own
    is_logarithm, is_kept = problem.function == "log_softmax", plan.is_kept

    @tc.function
    def finished(value: Any, total: Any) -> Any:
        return (value - total if is_logarithm else tc.exp(value) * total).to(dtype)

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, a: Any, col: Any) -> Any:
        powers = tc.shared(wide[n if is_kept else 0, own.shape[0]])
        peak = tc.tile(wide, own, -tc.inf)
        for q in range(n):
            for j in own:
                if col + j < inner:
                    peak[j] = max(peak[j], x[a, q, col + j].to(wide))
        total = tc.tile(wide, own, 0)
        for q in range(n):
            for j in own:
                if col + j < inner:
                    power = tc.exp(x[a, q, col + j].to(wide) - peak[j])
                    total[j] += power
                    if is_kept:
                        powers[q, j] = power
        for j in own:
            total[j] = tc.log(total[j]) if is_logarithm else 1 / total[j]
        for q in range(n):
            for j in own:
                if col + j < inner:
                    if is_kept:
                        y[a, q, col + j] = (powers[q, j] * total[j]).to(dtype)
                    else:
                        y[a, q, col + j] = finished(x[a, q, col + j].to(wide) - peak[j], total[j])

    return block


def _normalization(problem: Problem, plan: Columns) -> Function:
    n, inner, dtype, wide, own = problem.n, problem.inner, problem.dtype, problem.wide, plan.own

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, a: Any, col: Any) -> Any:
        mean = tc.tile(wide, own, 0)
        if problem.is_centred:
            for q in range(n):
                for j in own:
                    if col + j < inner:
                        mean[j] += x[a, q, col + j].to(wide)
            for j in own:
                mean[j] /= wide(n)
        factor = tc.tile(wide, own, 0)
        for q in range(n):
            for j in own:
                if col + j < inner:
                    factor[j] += (x[a, q, col + j].to(wide) - mean[j]) ** 2
        for j in own:
            factor[j] = 1 / tc.sqrt(factor[j] / wide(n) + problem.epsilon)
        for q in range(n):
            for j in own:
                if col + j < inner:
                    value = (x[a, q, col + j].to(wide) - mean[j]) * factor[j]
                    if scale:
                        value *= scale[0][q].to(wide)
                    if shift:
                        value += shift[0][q].to(wide)
                    y[a, q, col + j] = value.to(dtype)

    return block
