"""Layer normalization of f16 rows, computed in f32: mean 0, variance 1, then scaled and shifted.

`repeat(1, k) * spatial(1, 128) * repeat(1, 2)` says: all 128 workers walk along one row together,
in k steps, and at each step a worker has two neighbouring elements.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f16, f32, repeat, spatial


def make_layer_norm(
    m: int | tc.Size, n: int, *, workers: int = 128, vector: int = 2, epsilon: float = 1e-5
) -> tc.KernelDefinition:
    own = repeat(1, tc.cdiv(n, workers * vector)) * spatial(1, workers) * repeat(1, vector)

    @tc.kernel(workers=workers)
    def layer_norm(x: f16[m, n], scale: f32[n], shift: f32[n], y: tc.out[f16[m, n]]) -> None:
        for row in tc.tiles(m, by=1):
            values = tc.tile(f32, own, 0)
            for i, j in own:
                if j < n:
                    values[i, j] = x[row + i, j].to(f32)
            mean = tc.reduce(values, 1, "+")
            for i in mean.mapping:
                mean[i] /= n

            squares = tc.tile(f32, own, 0)
            for i, j in own:
                if j < n:
                    squares[i, j] = (values[i, j] - mean[i]) ** 2
            variance = tc.reduce(squares, 1, "+")

            for i, j in own:
                if j < n:
                    normal = (values[i, j] - mean[i]) * tc.rsqrt(variance[i] / n + epsilon)
                    y[row + i, j] = (normal * scale[j] + shift[j]).to(f16)

    return layer_norm


layer_norm = make_layer_norm(tc.dim("rows", example=5), 300)


def main() -> None:
    x, scale, shift = layer_norm.example()
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    error = np.abs(layer_norm(x, scale, shift) - (exact * scale + shift)).max()
    print(f"layer_norm: largest error {error:.1e}")


if __name__ == "__main__":
    main()
