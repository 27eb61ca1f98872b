"""Tuning a template of one's own, by a strategy of one's own.

`repeat(rows, vectors) * spatial(1, LANES)` says: neighbouring lanes have neighbouring columns of the result, each with
`rows` of them; how many rows and vectors is what `@tc.tune` leaves open, so that `tune` measures, by a generator of
plans that sees what was measured so far, and a plain call takes what was best, or else the defaults.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.tune.database import Database

LANES = tc.machine().lanes
TILES = [repeat(rows, vectors) * spatial(1, LANES) for rows in (1, 4, 6) for vectors in (1, 2, 4)]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The right result. Each candidate is compared with it before it is timed."""
    return a.astype(np.float64) @ b.astype(np.float64)


@tc.tune(own=TILES, depth=[16, 64], reference=product)
def matmul(
    m: int, n: int, k: int, *, own: tc.Mapping = TILES[0], depth: int = 16
) -> tc.KernelDefinition:
    """`own` says who has which part of a block of the result, `depth` how much of k a step takes."""
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def kernel(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]) -> None:
        for row, column in tc.tiles((m, n), by=(bm, bn)):
            total = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=depth):
                left = tc.load(a[row : row + bm, p : p + depth])
                right = tc.load(b[p : p + depth, column : column + bn])
                for q in range(depth):
                    for i, j in own:
                        total[i, j] += left[i, q] * right[q, j]
            tc.store(c[row : row + bm, column : column + bn], total)

    return kernel


def climb(space: Any, measured: Mapping[Any, float], random: Random) -> Iterator[list[Any]]:
    """From the default on, to whichever neighbour is faster, until none is."""
    best = None
    while best != (best := min(measured, key=measured.__getitem__)):
        yield [plan for plan in space.neighbours(best) if plan not in measured][:4]


kernel = matmul(50, 70, 44)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "tuning.sqlite3")
        found = matmul.tune(200, 192, 96, strategy=climb, most=6, database=database)
    best = matmul.function(200, 192, 96, **dict(found.winner.values))
    a, b = best.example()
    error = np.abs(best(a, b) - product(a, b)).max()
    print(f"tuning: largest error {error:.1e}")


if __name__ == "__main__":
    main()
