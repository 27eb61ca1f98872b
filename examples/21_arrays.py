"""NumPy code as programs: heat in a plate with its import changed, a step of it by `tc.jit`, and a kernel between them.

`spatial(16) * repeat(4)` says: 16 workers side by side, each with 4 neighbouring elements.
"""

from __future__ import annotations

from typing import Any

import numpy

import taskc as tc
import taskc.numpy as np
from taskc import f64, repeat, spatial


def make_limited(n: int | tc.Size, *, most: float = 1.0, workers: int = 16) -> tc.KernelDefinition:
    own = spatial(workers) * repeat(4)
    (size,) = own.shape

    @tc.kernel(workers=own.workers)
    def limited(x: f64[n], y: tc.out[f64[n]]) -> None:
        for start in tc.tiles(n, by=size):
            for i in own:
                if start + i < n:
                    y[start + i] = min(x[start + i], most)

    return limited


limited = make_limited(tc.dim("n", example=130))


def diffused(u: Any, steps: int) -> Any:
    """Each step notes its operations; three views are read, and one is written through."""
    for _ in range(steps):
        inner = u[1:-1, 1:-1]
        inner += 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner)
        u[0] = u[1]
    return u


@tc.jit
def warmed(u: Any) -> Any:
    """Noted once for each outcome of the comparison, and replayed."""
    return u * 1.5 if u.max() < 1 else u + 0.1


def heated(given: Any, steps: int, start: Any) -> Any:
    u = diffused(start(given), steps)
    u = warmed(u) if start is np.array else numpy.where(u.max() < 1, u * 1.5, u + 0.1)
    flat = u.reshape(-1)
    return limited(numpy.asarray(flat)) if start is np.array else numpy.minimum(flat, 1.0)


def main() -> None:
    given = numpy.random.default_rng(0).random((90, 100))
    error = numpy.abs(heated(given, 20, np.array) - heated(given, 20, numpy.array)).max()
    print(f"arrays: largest error {error:.1e}")


if __name__ == "__main__":
    main()
