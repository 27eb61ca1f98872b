"""The operator shown by `taskc demo`."""

# mypy: ignore-errors

import taskc as tc
from taskc import f32, repeat, spatial

OWN = spatial(4, 8) * repeat(2, 2)


def linear(m, n, k, own):
    """relu(x @ w + bias), a block of `own` at a time."""
    rows, columns = own.shape

    @tc.kernel(workers=own.workers)
    def linear(x: f32[m, k], w: f32[k, n], bias: f32[n], y: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(rows, columns)):  # one block each
            acc = tc.tile(f32, own, 0)  # in registers
            for p in tc.pipeline(k, by=8, stages=2):  # the next loads overlap
                sx = tc.load(x[row : row + rows, p : p + 8])  # to shared memory
                sw = tc.load(w[p : p + 8, col : col + columns])
                for q in range(8):
                    for i, j in own:  # this worker's tasks
                        acc[i, j] += sx[i, q] * sw[q, j]
            for i, j in own:
                if row + i < m and col + j < n:
                    y[row + i, col + j] = max(acc[i, j] + bias[col + j], 0.0)

    return linear
