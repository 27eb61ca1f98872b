"""Det: determinants of matrices, by Gaussian elimination with partial pivoting."""

from __future__ import annotations

from math import prod
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, spatial
from taskc.kernels.precision import wide
from taskc.operators.call import Call, Made, operator
from taskc.operators.common import are_equal
from taskc.operators.operands import computed, reshaped, template, tensors


@operator("Det", since=11)
def determinant(call: Call) -> Made:
    (x,) = tensors(call, 1)
    *batch, rows, columns = x.shape if len(x.shape) >= 2 else (0, 1)
    if not are_equal(rows, columns):
        raise call.node.error(f"its input {[*x.shape]} is no square matrix")
    total, count = wide(x.dtype), prod(batch)
    left = computed(x.shape, lambda *at: x[at].to(total)).reshape(count, rows, rows)
    determinants = _determinants(count, rows, dtype=x.dtype)(left)
    return reshaped(determinants, *batch)


def _make_determinants(
    count: Any, extent: Any, *, dtype: DType, machine: tc.Machine
) -> KernelDefinition:
    total = wide(dtype)

    @tc.kernel(workers=1)
    def determinants(left: tc.inout[total[count, extent, extent]], y: tc.out[dtype[count]]):
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


_determinants = template(_make_determinants)
