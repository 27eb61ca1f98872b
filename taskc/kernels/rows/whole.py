"""Softmax and normalizations of rows that a block has in registers: read once, and written once.

A short row is a warp's or a part of it, a longer one is all the block's. What sticks out behind a row's end
holds what leaves everything as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import KernelDefinition, Mapping
from taskc.kernels.rows.plan import Whole
from taskc.kernels.rows.problem import Problem

Function = Callable[..., Any]


def whole(problem: Problem, plan: Whole) -> KernelDefinition:
    makes = {"softmax": _softmax, "log_softmax": _log_softmax}
    block = makes.get(problem.function, _normalization)(problem, plan.own)
    return problem.kernel(plan.own, plan.own.shape[0], block)


@tc.function
def _read(x: Any, row: Any, own: Any, wide: Any, outside: Any) -> Any:
    held = tc.tile(wide, own, outside)
    for i, j in own:
        if row + i < x.shape[0] and j < x.shape[1]:
            held[i, j] = x[row + i, j].to(wide)
    return held


def _softmax(problem: Problem, own: Mapping) -> Function:
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, row: Any) -> Any:
        powers = _read(x, row, own, wide, -tc.inf)
        peak = tc.reduce(powers, 1, "max")
        for i, j in own:
            powers[i, j] = tc.exp(powers[i, j] - peak[i])
        factor = tc.reduce(powers, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / factor[i]
        for i, j in own:
            if row + i < m and j < n:
                y[row + i, j] = (powers[i, j] * factor[i]).to(dtype)

    return block


def _log_softmax(problem: Problem, own: Mapping) -> Function:
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, row: Any) -> Any:
        held = _read(x, row, own, wide, -tc.inf)
        peak = tc.reduce(held, 1, "max")
        powers = tc.tile(wide, own)
        for i, j in own:
            held[i, j] -= peak[i]
            powers[i, j] = tc.exp(held[i, j])
        total = tc.reduce(powers, 1, "+")
        for i in total.mapping:
            total[i] = tc.log(total[i])
        for i, j in own:
            if row + i < m and j < n:
                y[row + i, j] = (held[i, j] - total[i]).to(dtype)

    return block


def _normalization(problem: Problem, own: Mapping) -> Function:
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide
    parameter_of = problem.parameter_of

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, row: Any) -> Any:
        held = _read(x, row, own, wide, 0)
        if problem.is_centred:
            mean = tc.reduce(held, 1, "+")
            for i in mean.mapping:
                mean[i] /= wide(n)
            for i, j in own:
                if j < n:
                    held[i, j] -= mean[i]
        squares = tc.tile(wide, own)
        for i, j in own:
            squares[i, j] = held[i, j] ** 2
        factor = tc.reduce(squares, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / tc.sqrt(factor[i] / wide(n) + problem.epsilon)
        for i, j in own:
            if row + i < m and j < n:
                value = held[i, j] * factor[i]
                if scale:
                    value *= scale[0][parameter_of(row + i, j)].to(wide)
                if shift:
                    value += shift[0][parameter_of(row + i, j)].to(wide)
                y[row + i, j] = value.to(dtype)

    return block
