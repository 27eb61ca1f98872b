"""A matrix product that ends in any function of a sum, its place and further operands: a GEMM with an epilogue.

`spatial(4, 8) * repeat(4, 4)` says: 32 workers have 4 by 4 neighbouring sums each, and finish them
in the registers where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_gemm(
    m: int,
    n: int,
    k: int,
    epilogue: Callable[..., Any],
    operands: tuple[Any, ...] = (),
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bk: int = 8,
    stages: int = 2,
) -> tc.KernelDefinition:
    """c[i, j] = epilogue(a[i, :] @ b[:, j], i, j, *operands), whichever way a and b lie."""
    own = spatial(4, 8) * repeat(4, 4)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def gemm(
        a: tc.typed[f32[k, m] if transpose_a else f32[m, k]],
        b: tc.typed[f32[n, k] if transpose_b else f32[k, n]],
        operands: tc.typed[operands],
        c: tc.out[f32[m, n]],
    ) -> None:
        left, right = a.T if transpose_a else a, b.T if transpose_b else b
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=bk, stages=stages):
                sa = tc.load(left[row : row + bm, p : p + bk])
                sb = tc.load(right[p : p + bk, col : col + bn])
                tc.mma(acc, sa, sb)
            for i, j in own:
                if row + i < m and col + j < n:
                    c[row + i, col + j] = epilogue(acc[i, j], row + i, col + j, *operands)

    return gemm


@tc.function
def finished(total: Any, i: Any, j: Any, residual: Any, scale: Any, *bias: Any) -> Any:
    scaled = total * scale[j]
    return residual[i, j] + tc.tanh(scaled + bias[0][j] if bias else scaled)


def make_layer(
    rows: int, features: int, inputs: int, *, biased: bool = True, **how: Any
) -> tc.KernelDefinition:
    """y = residual + tanh(scale * (x @ w) + bias), with a scale and a bias for each feature."""
    operands = f32[rows, features], f32[features], *([f32[features]] if biased else [])
    return make_gemm(rows, features, inputs, finished, operands, **how)


layer = make_layer(37, 41, 29, transpose_b=True)
unbiased = make_layer(37, 41, 29, biased=False)


def main() -> None:
    x, w, residual, scale, bias = layer.example()
    exact = x.astype(np.float64) @ w.T.astype(np.float64) * scale
    error = np.abs(layer(x, w, residual, scale, bias) - np.tanh(exact + bias) - residual).max()
    without = np.abs(unbiased(x, w.T.copy(), residual, scale) - np.tanh(exact) - residual).max()
    print(f"epilogue: largest error {error:.1e}, without bias {without:.1e}")


if __name__ == "__main__":
    main()
