"""The algorithms for rows: `whole` rows in registers, `strips` of long ones, `columns` whose elements lie apart."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import CompileError, DType, KernelDefinition, Mapping
from taskc.kernels.rows.plan import Columns, Strips, Whole
from taskc.kernels.rows.problem import Problem
from taskc.kernels.signatures import Function, Value
from taskc.kernels.weights import weight_of

# --- Softmax and normalizations of rows that a block has in registers: read once, and written once
# A short row is a warp's or a part of it, a longer one is all the block's. What sticks out behind a row's end
# holds what leaves everything as it is.


def whole(problem: Problem, plan: Whole) -> KernelDefinition:
    makes = {"softmax": _softmax, "log_softmax": _log_softmax}
    block = makes.get(problem.function, _normalization)(problem, plan.own)
    return problem.kernel(plan.own, plan.own.shape[0], block)


@tc.function
def _read(x: Value, row: Value, own: Mapping, wide: DType, outside: float) -> Any:
    held = tc.tile(wide, own, outside)
    for i, j in own:
        if row + i < x.shape[0] and j < x.shape[1]:
            held[i, j] = x[row + i, j].to(wide)
    return held


def _softmax(problem: Problem, own: Mapping) -> Function:
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide
    weight = weight_of(wide, own.workers)

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, row: Value) -> None:
        powers = _read(x, row, own, wide, -tc.inf)
        peak = tc.reduce(powers, 1, "max")
        for i, j in own:
            powers[i, j] = weight(powers[i, j] - peak[i])
        factor = tc.reduce(powers, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / factor[i]
        for i, j in own:
            if row + i < m and j < n:
                y[row + i, j] = (powers[i, j] * factor[i]).to(dtype)

    return block


def _log_softmax(problem: Problem, own: Mapping) -> Function:
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide
    weight = weight_of(wide, own.workers)

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, row: Value) -> None:
        held = _read(x, row, own, wide, -tc.inf)
        peak = tc.reduce(held, 1, "max")
        powers = tc.tile(wide, own)
        for i, j in own:
            held[i, j] -= peak[i]
            powers[i, j] = weight(held[i, j])
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
    def block(x: Value, scale: Value, shift: Value, y: Value, row: Value) -> None:
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


# --- Softmax and normalizations of rows that are gone over two or three times, by strips --------
# A block's workers walk along a row side by side, a few accesses a step: on a processor they are one vector. All
# but the first time a row comes from the nearest cache.


def strips(problem: Problem, plan: Strips) -> KernelDefinition:
    makes = {"softmax": _softmax_by_strips, "log_softmax": _log_softmax_by_strips}
    block = makes.get(problem.function, _normalization_by_strips)(problem, plan)
    return problem.kernel(plan.own, plan.rows, block)


@tc.function
def _peak(x: Value, row: Value, own: Mapping, wide: DType) -> Any:
    """The largest element of a row."""
    peaks = tc.tile(wide, own, -tc.inf)
    for col in range(0, x.shape[1], own.shape[1]):
        for i, j in own:
            if col + j < x.shape[1]:
                peaks[i, j] = max(peaks[i, j], x[row + i, col + j].to(wide))
    return tc.reduce(peaks, 1, "max")


def _softmax_by_strips(problem: Problem, plan: Strips) -> Function:
    """The powers of a row, where they are kept, take the place of those of the row before: fewer bytes stay in the
    nearest cache.
    """
    m, n, dtype, wide = problem.m, problem.n, problem.dtype, problem.wide
    own, rows, most = plan.own, plan.rows, plan.kept
    step = own.shape[1]
    if rows > 1 and not (isinstance(n, int) and n <= most):
        raise CompileError(f"{rows} rows of a block are {n} powers each, and {most} are kept")

    weight = weight_of(wide, own.workers)
    power = tc.function(lambda x, row, col, peak: weight(x[row, col].to(wide) - peak))

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, row: Value) -> None:
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


def _log_softmax_by_strips(problem: Problem, plan: Strips) -> Function:
    n, dtype, wide, own = problem.n, problem.dtype, problem.wide, plan.own
    step, weight = own.shape[1], weight_of(wide, own.workers)

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, row: Value) -> None:
        peak = _peak(x, row, plan.peak, wide)
        totals = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    totals[i, j] += weight(x[row + i, col + j].to(wide) - peak[i])
        total = tc.reduce(totals, 1, "+")
        for i in total.mapping:
            total[i] = tc.log(total[i])
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    shifted = x[row + i, col + j].to(wide) - peak[i]
                    y[row + i, col + j] = (shifted - total[i]).to(dtype)

    return block


def _normalization_by_strips(problem: Problem, plan: Strips) -> Function:
    n, dtype, wide, own = problem.n, problem.dtype, problem.wide, plan.own
    step, is_centred, parameter_of = own.shape[1], problem.is_centred, problem.parameter_of
    # Elements of a channel have one parameter, whose place is otherwise a quotient for each of them.
    groups = problem.groups
    is_by_part = groups is not None and groups.pixels >= step
    parts, length = (n // groups.pixels, groups.pixels) if groups and is_by_part else (1, n)

    @tc.function
    def mean_of(x: Value, row: Value) -> Any:
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
    def about(mean: Value, x: Value, row: Value, i: Value, col: Value, j: Value) -> Any:
        if is_centred:
            return x[row + i, col + j].to(wide) - mean[i]
        return x[row + i, col + j].to(wide)

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, row: Value) -> None:
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


# --- Softmax and normalizations of rows whose elements aren't neighbours ------------------------
# A block has neighbouring rows, each worker its own ones, and goes over them two or three times.


def columns(problem: Problem, plan: Columns) -> KernelDefinition:
    block = (_softmax_by_columns if problem.has_peak else _normalization_by_columns)(problem, plan)
    return problem.kernel(plan.own, plan.own.shape[0], block)


def _softmax_by_columns(problem: Problem, plan: Columns) -> Function:
    n, inner, dtype, wide, own = problem.n, problem.inner, problem.dtype, problem.wide, plan.own
    is_logarithm, is_kept = problem.function == "log_softmax", plan.is_kept

    finished = tc.function(
        lambda value, total: (value - total if is_logarithm else tc.exp(value) * total).to(dtype)
    )

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, a: Value, col: Value) -> None:
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


def _normalization_by_columns(problem: Problem, plan: Columns) -> Function:
    n, inner, dtype, wide, own = problem.n, problem.inner, problem.dtype, problem.wide, plan.own

    @tc.function
    def block(x: Value, scale: Value, shift: Value, y: Value, a: Value, col: Value) -> None:
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
