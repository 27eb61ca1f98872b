"""Softmax of each row of a matrix.

`repeat(1, k) * spatial(4, 32)` says: 4 warps have a row each, and the 32 lanes of a warp walk along
their row side by side, in k steps; so a row is in the registers of one warp.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_softmax(m: int | tc.Size, n: int, *, warps: int = 4) -> tc.KernelDefinition:
    own = repeat(1, tc.cdiv(n, 32)) * spatial(warps, 32)
    rows, columns = own.shape  # n, rounded up

    @tc.kernel(workers=own.workers)
    def softmax(x: f32[m, n], y: tc.out[f32[m, n]]) -> None:
        for row in tc.tiles(m, by=rows):
            values = tc.tile(f32, own, -tc.inf)
            tc.copy(values, x[row : row + rows, 0:columns])  # what lies outside x stays -inf
            largest = tc.reduce(values, 1, "max")
            for i, j in own:
                values[i, j] = tc.exp(values[i, j] - largest[i])  # at most 1
            total = tc.reduce(values, 1, "+")
            for i, j in own:
                values[i, j] /= total[i]
            tc.store(y[row : row + rows, 0:columns], values)

    return softmax


softmax = make_softmax(tc.dim("rows", example=10), 100)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((10, 100), np.float32) * 100
    powers = np.exp(x - x.max(axis=1, keepdims=True), dtype=np.float64)
    error = np.abs(softmax(x) - powers / powers.sum(axis=1, keepdims=True)).max()
    print(f"softmax: largest error {error:.1e}")


if __name__ == "__main__":
    main()
