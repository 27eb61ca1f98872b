"""Vector addition: blocks, workers and their tasks.

`spatial(32) * repeat(4)` says: 32 workers side by side, each with 4 neighbouring elements.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_vector_add(n: int | tc.Size, *, workers: int = 32, vector: int = 4) -> tc.KernelDefinition:
    own = spatial(workers) * repeat(vector)
    (size,) = own.shape

    @tc.kernel(workers=own.workers)
    def vector_add(x: f32[n], y: f32[n], z: tc.out[f32[n]]) -> None:
        for start in tc.tiles(n, by=size):  # one block each
            for i in own:  # this worker's tasks, one after another
                if start + i < n:
                    z[start + i] = x[start + i] + y[start + i]

    return vector_add


# One kernel for all lengths that are multiples of 4. A worker's four elements are then all inside
# or all outside, and become one access of 128 bits.
vector_add = make_vector_add(tc.dim("n", multiple=4, example=500))


def main() -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 1000), np.float32)
    z = vector_add(x, y)
    print(f"vector_add: largest error {np.abs(z - (x + y)).max():.1e}")


if __name__ == "__main__":
    main()
