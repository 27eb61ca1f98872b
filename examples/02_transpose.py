"""A transposed matrix, through shared memory.

`repeat(4, 1) * spatial(8, 32)` says: 32 workers side by side along a row, 8 rows at a time, 4 times;
one loop over it reads rows of x, another one writes rows of y, and so both are coalesced.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_transpose(m, n, *, size=32, rows=8):
    own = repeat(size // rows, 1) * spatial(rows, size)

    @tc.kernel(workers=own.workers)
    def transpose(x: f32[m, n], y: tc.out[f32[n, m]]):
        for row, col in tc.tiles((m, n), by=own.shape):
            # Written by rows and read by columns: 32 columns apart, all lanes of a warp would meet
            # in one bank. The layout pass sees that, and pads the rows to 33.
            block = tc.shared(f32[own.shape])
            for i, j in own:
                if row + i < m and col + j < n:
                    block[i, j] = x[row + i, col + j]
            # Everyone is done before this loop begins: loops over mappings are phases.
            for j, i in own:
                if row + i < m and col + j < n:
                    y[col + j, row + i] = block[i, j]

    return transpose


transpose = make_transpose(50, 70)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((50, 70), np.float32)
    y = transpose(x)
    print(f"transpose: largest error {np.abs(y - x.T).max():.1e}")


if __name__ == "__main__":
    main()
