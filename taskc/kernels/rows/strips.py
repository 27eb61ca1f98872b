"""Softmax and normalizations of rows that are gone over two or three times, by strips.

A block's workers walk along a row side by side, a few accesses a step: on a processor they are one vector. All
but the first time a row comes from the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import CompileError, KernelDefinition
from taskc.kernels.rows.plan import Strips
from taskc.kernels.rows.problem import Problem

Function = Callable[..., Any]


def strips(problem: Problem, plan: Strips) -> KernelDefinition:
    makes = {"softmax": _softmax, "log_softmax": _log_softmax}
    block = makes.get(problem.function, _normalization)(problem, plan)
    return problem.kernel(plan.own, plan.rows, block)


@tc.function
def _peak(x: Any, row: Any, own: Any, wide: Any) -> Any:
    """The largest element of a row."""
    peaks = tc.tile(wide, own, -tc.inf)
    for col in range(0, x.shape[1], own.shape[1]):
        for i, j in own:
            if col + j < x.shape[1]:
                peaks[i, j] = max(peaks[i, j], x[row + i, col + j].to(wide))
    return tc.reduce(peaks, 1, "max")


def _softmax(problem: Problem, plan: Strips) -> Function:
    """The powers of a row, where they are kept, take the place of those of the row before: fewer bytes stay in the
    nearest cache.
    """
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide
    own, rows, most = plan.own, plan.rows, plan.kept
    step = own.shape[1]
    if rows > 1 and not (isinstance(n, int) and n <= most):
        raise CompileError(f"{rows} rows of a block are {n} powers each, and {most} are kept")

    @tc.function
    def power(x: Any, row: Any, col: Any, peak: Any) -> Any:
        return tc.exp(x[row, col].to(wide) - peak)

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, row: Any) -> Any:
        powers = tc.shared(wide[1, most])
        peak = _peak(x, row, plan.peak, wide)
        totals = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    value = power(x, row + i, col + j, peak[i])
                    totals[i, j] += value
                    if most > 0 and n <= most:
                        powers[i, col + j] = value
        for r in range(rows):
            if row + r < m:
                factor = tc.reduce(totals, 1, "+")
                for i in factor.mapping:
                    factor[i] = 1 / factor[i]
                if rows > 1:
                    following = _peak(x, min(row + r + 1, m - 1), plan.peak, wide)
                    for i in peak.mapping:
                        peak[i] = following[i]
                    for i, j in own:
                        totals[i, j] = 0
                for col in range(0, n, step):
                    for i, j in own:
                        if col + j < n:
                            if most > 0 and n <= most:
                                value = powers[i, col + j]
                                y[row + r + i, col + j] = (value * factor[i]).to(dtype)
                                if rows > 1 and r + 1 < rows and row + r + 1 < m:
                                    value = power(x, row + r + 1 + i, col + j, peak[i])
                                    totals[i, j] += value
                                    powers[i, col + j] = value
                            else:
                                value = power(x, row + i, col + j, peak[i])
                                y[row + r + i, col + j] = (value * factor[i]).to(dtype)

    return block


def _log_softmax(problem: Problem, plan: Strips) -> Function:
    n, dtype, wide, own = problem.n, problem.dtype, problem.wide, plan.own
    step = own.shape[1]

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, row: Any) -> Any:
        peak = _peak(x, row, plan.peak, wide)
        totals = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    totals[i, j] += tc.exp(x[row + i, col + j].to(wide) - peak[i])
        total = tc.reduce(totals, 1, "+")
        for i in total.mapping:
            total[i] = tc.log(total[i])
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    shifted = x[row + i, col + j].to(wide) - peak[i]
                    y[row + i, col + j] = (shifted - total[i]).to(dtype)

    return block


def _normalization(problem: Problem, plan: Strips) -> Function:
    n, dtype, wide, own = problem.n, problem.dtype, problem.wide, plan.own
    step, is_centred, parameter_of = own.shape[1], problem.is_centred, problem.parameter_of
    # Elements of a channel have one parameter, whose place is otherwise a quotient for each of them.
    groups = problem.groups
    is_by_part = groups is not None and groups.pixels >= step
    parts, length = (n // groups.pixels, groups.pixels) if groups and is_by_part else (1, n)

    @tc.function
    def mean_of(x: Any, row: Any) -> Any:
        totals = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    totals[i, j] += x[row + i, col + j].to(wide)
        mean = tc.reduce(totals, 1, "+")
        for i in mean.mapping:
            mean[i] /= wide(n)
        return mean

    @tc.function
    def about(mean: Any, x: Any, row: Any, i: Any, col: Any, j: Any) -> Any:
        if is_centred:
            return x[row + i, col + j].to(wide) - mean[i]
        return x[row + i, col + j].to(wide)

    @tc.function
    def block(x: Any, scale: Any, shift: Any, y: Any, row: Any) -> Any:
        mean = mean_of(x, row) if is_centred else None
        squares = tc.tile(wide, own, 0)
        for back in range(-(-n // step)):  # from the end, which is in the nearest cache
            col = (-(-n // step) - 1 - back) * step
            for i, j in own:
                if col + j < n:
                    squares[i, j] += about(mean, x, row, i, col, j) ** 2
        factor = tc.reduce(squares, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / tc.sqrt(factor[i] / wide(n) + problem.epsilon)
        for part in range(parts):
            for col in range(0, length, step):
                for i, j in own:
                    if col + j < length:
                        at = part * length if is_by_part else col + j
                        value = about(mean, x, row, i, part * length + col, j) * factor[i]
                        if scale:
                            value *= scale[0][parameter_of(row + i, at)].to(wide)
                        if shift:
                            value += shift[0][parameter_of(row + i, at)].to(wide)
                        y[row + i, part * length + col + j] = value.to(dtype)

    return block
