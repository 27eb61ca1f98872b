"""A histogram: each block counts in shared memory, and adds what it counted to the result.

`repeat(4) * spatial(64)` says: 64 workers side by side take 64 neighbouring values, 4 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import taskc as tc
from taskc import auto_map, i32, repeat, spatial


def make_histogram(
    n: int,
    bins: int,
    *,
    workers: int = 64,
    repeats: int = 4,
    example: Callable[[np.random.Generator], Any] | None = None,
) -> tc.KernelDefinition:
    own = repeat(repeats) * spatial(workers)
    every_bin = auto_map((bins,), workers=workers)
    (size,) = own.shape

    @tc.kernel(workers=workers, example=example)
    def histogram(values: i32[n], counts: tc.inout[i32[bins]]) -> None:
        for start in tc.tiles(n, by=size):
            counted = tc.shared(i32[bins])
            for bin in every_bin:
                counted[bin] = 0
            for i in own:
                if start + i < n:
                    bin = values[start + i]
                    # The index is data: nothing but this test says that it is in bounds.
                    if 0 <= bin < bins:
                        tc.atomic_add(counted[bin], 1)
            for bin in every_bin:
                tc.atomic_add(counts[bin], counted[bin])

    return histogram


def _example(random: np.random.Generator) -> Any:
    return random.integers(-5, 105, 1000, np.int32), np.zeros(100, np.int32)


histogram = make_histogram(1000, 100, example=_example)


def main() -> None:
    values, counts = histogram.example()
    histogram(values, counts)
    exact = np.bincount(values[(values >= 0) & (values < 100)], minlength=100)
    print(f"histogram: largest error {np.abs(counts - exact).max()}")


if __name__ == "__main__":
    main()
