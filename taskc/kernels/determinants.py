"""Determinants and inverses of matrices, by Gaussian elimination with partial pivoting."""

from __future__ import annotations

import taskc as tc
from taskc import DType, KernelDefinition, Machine, spatial
from taskc.kernels.signatures import Extent, wide


def determinants(
    count: Extent, extent: Extent, *, dtype: DType, machine: Machine
) -> KernelDefinition:
    total = wide(dtype)

    @tc.kernel(workers=1)
    def determinants(left: tc.inout[total[count, extent, extent]], y: tc.out[dtype[count]]) -> None:
        for n in tc.tiles(count, by=1):
            for _ in spatial(1):
                product = total(1)
                for k in range(extent):
                    best = k
                    for i in range(k + 1, extent):
                        if abs(left[n, i, k]) > abs(left[n, best, k]):
                            best = i
                    pivot = left[n, best, k]
                    product *= pivot if best == k else -pivot
                    for j in range(k, extent):
                        taken = left[n, best, j]
                        left[n, best, j] = left[n, k, j]
                        left[n, k, j] = taken
                    if pivot != 0:
                        for i in range(k + 1, extent):
                            factor = left[n, i, k] / pivot
                            for j in range(k + 1, extent):
                                left[n, i, j] -= factor * left[n, k, j]
                y[n] = product.to(dtype)

    return determinants


def eliminated(
    count: Extent, extent: Extent, *, dtype: DType, machine: Machine
) -> KernelDefinition:
    """Matrices with an identity on their right become the identity, with the inverses on its right.

    A singular matrix makes infinities or NaN.
    """

    @tc.kernel(workers=1)
    def eliminated(pairs: tc.inout[dtype[count, extent, 2 * extent]]) -> None:
        for n in tc.tiles(count, by=1):
            for _ in spatial(1):
                for k in range(extent):
                    best = k
                    for i in range(k + 1, extent):
                        if abs(pairs[n, i, k]) > abs(pairs[n, best, k]):
                            best = i
                    pivot = pairs[n, best, k]
                    for j in range(2 * extent):
                        taken = pairs[n, best, j]
                        pairs[n, best, j] = pairs[n, k, j]
                        pairs[n, k, j] = taken / pivot
                    for i in range(extent):
                        factor = dtype(0) if i == k else pairs[n, i, k]
                        for j in range(2 * extent):
                            pairs[n, i, j] -= factor * pairs[n, k, j]

    return eliminated
