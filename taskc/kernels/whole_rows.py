"""Softmax and normalizations of rows that a block has in registers: read once, and written once.

    own = spatial(rows, 1) * repeat(1, accesses) * spatial(1, workers) * repeat(1, wide)

A short row is a warp's or a part of it, a longer one is all the block's. What sticks out behind a row's end
holds what leaves everything as it is.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Mapping

Extent = Any  # an int, or a tc.dim


@tc.function
def _read(x, row, own, wide, outside):
    held = tc.tile(wide, own, outside)
    for i, j in own:
        if row + i < x.shape[0] and j < x.shape[1]:
            held[i, j] = x[row + i, j].to(wide)
    return held


def softmax(m: Extent, n: Extent, own: Mapping, dtype: DType, wide: DType) -> KernelDefinition:
    @tc.kernel(workers=own.workers)
    def softmax(x: dtype[m, n], y: tc.out[dtype[m, n]]):
        for row in tc.tiles(m, by=own.shape[0]):
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

    return softmax


def log_softmax(m: Extent, n: Extent, own: Mapping, dtype: DType, wide: DType) -> KernelDefinition:
    @tc.kernel(workers=own.workers)
    def log_softmax(x: dtype[m, n], y: tc.out[dtype[m, n]]):
        for row in tc.tiles(m, by=own.shape[0]):
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

    return log_softmax


def normalization(n: Extent, own: Mapping, wide: DType, *, centred: bool, epsilon: float) -> Any:
    """A function of (x, scale, shift, y, row), for layer_norm and rms_norm; the two are tuples of one or none."""

    @tc.function
    def normalize(x, scale, shift, y, row):
        held = _read(x, row, own, wide, 0)
        if centred:
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
            factor[i] = 1 / tc.sqrt(factor[i] / wide(n) + epsilon)
        for i, j in own:
            if row + i < x.shape[0] and j < n:
                value = held[i, j] * factor[i]
                if scale:
                    value *= scale[0][j].to(wide)
                if shift:
                    value += shift[0][j].to(wide)
                y[row + i, j] = value.to(y.dtype)

    return normalize
