"""A transposed matrix, through shared memory.

`repeat(4, 1) * spatial(8, 32)` says: 32 workers are side by side along a row, 8 rows at a time, 4
times; one loop over it reads rows of x, another one writes rows of y, so both are coalesced.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_transpose(m: int, n: int, *, size: int = 32, rows: int = 8) -> tc.KernelDefinition:
    own = repeat(size // rows, 1) * spatial(rows, size)

    @tc.kernel(workers=own.workers)
    def transpose(x: f32[m, n], y: tc.out[f32[n, m]]) -> None:
        for row, col in tc.tiles((m, n), by=own.shape):
            # It is written by rows and read by columns. With rows of 32 elements, 32 lanes would
            # read a column from one bank; the layout pass sees that, and pads the rows to 33.
            block = tc.shared(f32[own.shape])
            for i, j in own:
                if row + i < m and col + j < n:
                    block[i, j] = x[row + i, col + j]
            # Loops over mappings are phases: all have written before anyone reads.
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
