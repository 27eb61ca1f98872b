"""Softmax and normalizations over the last axis of a matrix.

A block is one vector of workers, and has one row: they walk along it side by side, `unroll` vectors a
step. A row is gone over two or three times, from the nearest cache but for the first. Numbers of 16 bits
are converted as they are read, and rounded when they are written.
"""

from __future__ import annotations

import taskc as tc
from taskc import DType, KernelDefinition, Mapping, f32, f64, repeat, spatial

# More steps than the compiler writes out: a row of constant length stays a loop.
_STEPS = 17

# The powers of so many elements are kept, where the nearest caches hold them; of longer rows they are
# computed again.
_KEPT = 1 << 14

# Two rows of so many, and their powers, stay in the nearest caches; the most rows of a block.
_PAIRED, _ROWS = 1 << 13, 16


def _strip(n: object, *, most: int = 4, steps: int = _STEPS) -> Mapping:
    """The part of a row that a block takes at a time: `most` vectors, unless that makes few steps."""
    lanes = tc.machine().lanes
    unroll = most
    while isinstance(n, int) and unroll > 1 and n < steps * unroll * lanes:
        unroll //= 2
    return repeat(1, unroll) * spatial(1, lanes)


def _wide(dtype: DType) -> DType:
    """What is computed in."""
    return f64 if dtype is f64 else f32


def softmax(m: object, n: object, *, dtype: DType = f32) -> KernelDefinition:
    """exp(x - peak) / sum(exp(x - peak)) for each row, with the row's largest element as its peak.

    A block has several rows, unless they are long: the powers of a row are computed while those of the row
    before are divided and written, since one keeps the arithmetic busy and the other the memory.
    """
    own, wide, machine = _strip(n), _wide(dtype), tc.machine()
    step, broad = own.shape[1], _strip(n, most=8, steps=1)
    most = min(n, _KEPT) if isinstance(n, int) else _KEPT
    rows = 1
    if isinstance(m, int) and isinstance(n, int) and n <= _PAIRED:
        rows = min(_ROWS, max(1, m // (4 * machine.threads)))
    # Rows a whole page apart would be taken for each other when loads look for stores before them.
    pitch = most + 8 * machine.lanes

    @tc.function
    def power(x, row, col, peak):
        return tc.exp(x[row, col].to(wide) - peak)

    @tc.kernel(workers=own.workers)
    def softmax(x: dtype[m, n], y: tc.out[dtype[m, n]]):
        for row in tc.tiles(m, by=rows):
            powers = tc.shared(wide[min(2, rows), pitch])
            peak = _peak(x, row, broad, wide)
            totals = tc.tile(wide, own, 0)
            for col in range(0, n, step):
                for i, j in own:
                    if col + j < n:
                        value = power(x, row + i, col + j, peak[i])
                        totals[i, j] += value
                        if n <= most:
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
                                if rows > 1 and r + 1 < rows and row + r + 1 < m:
                                    value = power(x, row + r + 1 + i, col + j, peak[i])
                                    totals[i, j] += value
                                    powers[(r + 1) % 2 + i, col + j] = value
                                if n <= most:
                                    value = powers[r % 2 + i, col + j]
                                    y[row + r + i, col + j] = (value * factor[i]).to(dtype)
                                else:
                                    value = power(x, row + i, col + j, peak[i])
                                    y[row + r + i, col + j] = (value * factor[i]).to(dtype)

    return softmax


def log_softmax(m: object, n: object, *, dtype: DType = f32) -> KernelDefinition:
    """x - peak - log(sum(exp(x - peak))) for each row."""
    own, wide = _strip(n), _wide(dtype)
    step, broad = own.shape[1], _strip(n, most=8, steps=1)

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
) -> KernelDefinition:
    """(x - mean) / sqrt(variance + epsilon) for each row, times `scale`, plus `shift`.

    scaled, shifted  whether there are such parameters, of n elements. The variance is taken about the
    mean, in a pass of its own.
    """
    own, wide = _strip(n), _wide(dtype)
    step = own.shape[1]

    @tc.function
    def normalize(x, scale, shift, y, row):
        totals = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    totals[i, j] += x[row + i, col + j].to(wide)
        mean = tc.reduce(totals, 1, "+")
        for i in mean.mapping:
            mean[i] /= wide(n)
        squares = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    squares[i, j] += (x[row + i, col + j].to(wide) - mean[i]) ** 2
        factor = tc.reduce(squares, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / tc.sqrt(factor[i] / wide(n) + epsilon)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    value = (x[row + i, col + j].to(wide) - mean[i]) * factor[i]
                    if scale is not None:
                        value *= scale[col + j].to(wide)
                    if shift is not None:
                        value += shift[col + j].to(wide)
                    y[row + i, col + j] = value.to(dtype)

    matrix, vector = dtype[m, n], dtype[n]
    if scaled and shifted:

        @tc.kernel(workers=own.workers)
        def layer_norm(x: matrix, scale: vector, shift: vector, y: tc.out[matrix]):
            for row in tc.tiles(m, by=1):
                normalize(x, scale, shift, y, row)

    elif scaled:

        @tc.kernel(workers=own.workers)
        def layer_norm(x: matrix, scale: vector, y: tc.out[matrix]):
            for row in tc.tiles(m, by=1):
                normalize(x, scale, None, y, row)

    elif shifted:

        @tc.kernel(workers=own.workers)
        def layer_norm(x: matrix, shift: vector, y: tc.out[matrix]):
            for row in tc.tiles(m, by=1):
                normalize(x, None, shift, y, row)

    else:

        @tc.kernel(workers=own.workers)
        def layer_norm(x: matrix, y: tc.out[matrix]):
            for row in tc.tiles(m, by=1):
                normalize(x, None, None, y, row)

    return layer_norm


def rms_norm(
    m: object, n: object, *, dtype: DType = f32, scaled: bool = True, epsilon: float = 1e-5
) -> KernelDefinition:
    """x / sqrt(mean(x**2) + epsilon) for each row, times `scale`, of n elements, if there is one."""
    own, wide = _strip(n), _wide(dtype)
    step = own.shape[1]

    @tc.function
    def normalize(x, scale, y, row):
        squares = tc.tile(wide, own, 0)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    squares[i, j] += x[row + i, col + j].to(wide) ** 2
        factor = tc.reduce(squares, 1, "+")
        for i in factor.mapping:
            factor[i] = 1 / tc.sqrt(factor[i] / wide(n) + epsilon)
        for col in range(0, n, step):
            for i, j in own:
                if col + j < n:
                    value = x[row + i, col + j].to(wide) * factor[i]
                    if scale is not None:
                        value *= scale[col + j].to(wide)
                    y[row + i, col + j] = value.to(dtype)

    matrix, vector = dtype[m, n], dtype[n]
    if scaled:

        @tc.kernel(workers=own.workers)
        def rms_norm(x: matrix, scale: vector, y: tc.out[matrix]):
            for row in tc.tiles(m, by=1):
                normalize(x, scale, y, row)

    else:

        @tc.kernel(workers=own.workers)
        def rms_norm(x: matrix, y: tc.out[matrix]):
            for row in tc.tiles(m, by=1):
                normalize(x, None, y, row)

    return rms_norm
