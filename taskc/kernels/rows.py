"""Softmax and normalizations over the last axis of a matrix.

A block has one row: its workers walk along it side by side, a few accesses a step. On a processor it is one
vector of workers. A row is gone over two or three times, from the nearest cache but for the first; where the
registers of a block hold it, as on GPUs those of up to 32768 elements, it is read once (whole_rows.py).
Numbers of 16 bits are converted as they are read, and rounded when they are written.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, Mapping, f32, f64, repeat, spatial
from taskc.kernels import whole_rows
from taskc.kernels.machine_facts import GPU, PROCESSOR
from taskc.kernels.owners import along, owners_of_whole_rows, width


def _strip(
    n: object,
    dtype: DType,
    machine: Machine,
    *,
    most: int = 4,
    steps: int = PROCESSOR.unrolled_steps + 1,
) -> Mapping:
    """The part of a row that a block takes at a time: `most` vectors, unless that makes few steps."""
    if not machine.is_processor:
        return along(2 * GPU.block_workers, 4, width(n, dtype))
    lanes = machine.lanes
    unroll = most
    while isinstance(n, int) and unroll > 1 and n < steps * unroll * lanes:
        unroll //= 2
    return repeat(1, unroll) * spatial(1, lanes)


def _wide(dtype: DType) -> DType:
    """What is computed in."""
    return f64 if dtype is f64 else f32


def softmax(
    m: object, n: object, *, dtype: DType = f32, machine: Machine | None = None
) -> KernelDefinition:
    """exp(x - peak) / sum(exp(x - peak)) for each row, with the row's largest element as its peak.

    A processor's block has several rows, unless they are long: the powers of a row are computed while those of
    the row before are divided and written, since one keeps the arithmetic busy and the other the memory. They
    take the place of those: fewer bytes stay in the nearest cache.
    """
    wide, machine = _wide(dtype), machine or tc.machine()
    whole = owners_of_whole_rows(m, n, dtype, machine)
    if whole is not None:
        return whole_rows.softmax(m, n, whole, dtype, wide)
    own, broad = _strip(n, dtype, machine), _strip(n, dtype, machine, most=8, steps=1)
    most, rows = (
        min(n, PROCESSOR.cached_powers) if isinstance(n, int) else PROCESSOR.cached_powers,
        1,
    )
    if isinstance(m, int) and isinstance(n, int) and n <= PROCESSOR.cached_rows:
        rows = min(16, max(1, m // (4 * machine.threads)))
    if not machine.is_processor:
        most = 0  # a power is sooner computed again than kept
    return _softmax(m, n, own, broad, dtype, wide, rows, most)


def _softmax(
    m: Any, n: Any, own: Mapping, broad: Mapping, dtype: DType, wide: DType, rows: int, most: int
) -> KernelDefinition:
    """A block has so many rows, and keeps the powers of rows of up to `most` elements."""
    step = own.shape[1]

    @tc.function
    def power(x, row, col, peak):
        return tc.exp(x[row, col].to(wide) - peak)

    @tc.kernel(workers=own.workers)
    def softmax(x: dtype[m, n], y: tc.out[dtype[m, n]]):
        for row in tc.tiles(m, by=rows):
            powers = tc.shared(wide[1, most])
            peak = _peak(x, row, broad, wide)
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
                        following = _peak(x, min(row + r + 1, m - 1), broad, wide)
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

    return softmax


def log_softmax(
    m: object, n: object, *, dtype: DType = f32, machine: Machine | None = None
) -> KernelDefinition:
    """x - peak - log(sum(exp(x - peak))) for each row."""
    wide, machine = _wide(dtype), machine or tc.machine()
    whole = owners_of_whole_rows(m, n, dtype, machine)
    if whole is not None:
        return whole_rows.log_softmax(m, n, whole, dtype, wide)
    own = _strip(n, dtype, machine)
    step, broad = own.shape[1], _strip(n, dtype, machine, most=8, steps=1)

    @tc.kernel(workers=own.workers)
    def log_softmax(x: dtype[m, n], y: tc.out[dtype[m, n]]):
        for row in tc.tiles(m, by=1):
            peak = _peak(x, row, broad, wide)
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

    return log_softmax


@tc.function
def _peak(x, row, own, wide):
    """The largest element of a row. A maximum is short: eight of them go on side by side."""
    peaks = tc.tile(wide, own, -tc.inf)
    for col in range(0, x.shape[1], own.shape[1]):
        for i, j in own:
            if col + j < x.shape[1]:
                peaks[i, j] = max(peaks[i, j], x[row + i, col + j].to(wide))
    return tc.reduce(peaks, 1, "max")


def layer_norm(
    m: object,
    n: object,
    *,
    dtype: DType = f32,
    scaled: bool = True,
    shifted: bool = True,
    epsilon: float = 1e-5,
    machine: Machine | None = None,
) -> KernelDefinition:
    """(x - mean) / sqrt(variance + epsilon) for each row, times `scale`, plus `shift`.

    scaled, shifted  whether there are such parameters, of n elements. The variance is taken about the
    mean, in a pass of its own.
    """
    own, normalize = _normalization(m, n, dtype, machine, centred=True, epsilon=epsilon)
    matrix, vector = dtype[m, n], (dtype[n],)

    @tc.kernel(workers=own.workers)
    def layer_norm(
        x: matrix,
        scale: vector if scaled else (),
        shift: vector if shifted else (),
        y: tc.out[matrix],
    ):
        for row in tc.tiles(m, by=own.shape[0]):
            normalize(x, scale, shift, y, row)

    return layer_norm


def rms_norm(
    m: object,
    n: object,
    *,
    dtype: DType = f32,
    scaled: bool = True,
    epsilon: float = 1e-5,
    machine: Machine | None = None,
) -> KernelDefinition:
    """x / sqrt(mean(x**2) + epsilon) for each row, times `scale`, of n elements, if there is one."""
    own, normalize = _normalization(m, n, dtype, machine, centred=False, epsilon=epsilon)
    matrix, vector = dtype[m, n], (dtype[n],)

    @tc.kernel(workers=own.workers)
    def rms_norm(x: matrix, scale: vector if scaled else (), y: tc.out[matrix]):
        for row in tc.tiles(m, by=own.shape[0]):
            normalize(x, scale, (), y, row)

    return rms_norm


def _normalization(
    m: object,
    n: object,
    dtype: DType,
    machine: Machine | None,
    *,
    centred: bool,
    epsilon: float,
) -> tuple[Mapping, Any]:
    """Who has which part of a row at a time, and a function of (x, scale, shift, y, row).

    centred  the mean is taken away before
    """
    wide, machine = _wide(dtype), machine or tc.machine()
    whole = owners_of_whole_rows(m, n, dtype, machine)
    if whole is not None:
        return whole, whole_rows.normalization(n, whole, wide, centred=centred, epsilon=epsilon)
    own = _strip(n, dtype, machine)
    step = own.shape[1]

    @tc.function
    def mean_of(x, row):
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
    def about(mean, x, row, i, col, j):
        if centred:
            return x[row + i, col + j].to(wide) - mean[i]
        return x[row + i, col + j].to(wide)

    @tc.function
    def normalize(x, scale, shift, y, row):
        mean = mean_of(x, row) if centred else None
        squares = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    squares[i, j] += about(mean, x, row, i, col, j) ** 2
        factor = tc.reduce(squares, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / tc.sqrt(factor[i] / wide(n) + epsilon)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    value = about(mean, x, row, i, col, j) * factor[i]
                    if scale:
                        value *= scale[0][col + j].to(wide)
                    if shift:
                        value += shift[0][col + j].to(wide)
                    y[row + i, col + j] = value.to(dtype)

    return own, normalize
