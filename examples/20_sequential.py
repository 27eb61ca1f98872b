"""An LU factorization, whose steps depend on each other, by one block: a step is two phases, which all workers share.

`spatial(workers)` says: worker w has every `workers`-th row of a step, `range(k + 1 + w, n, workers)`, and in each row
every `workers`-th element, so that neighbours store neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import f64, spatial


def make_lu(n: Any, *, workers: int = 16) -> Any:
    def example(random: np.random.Generator) -> tuple[Any]:
        size = n if isinstance(n, int) else n.example
        return (random.random((size, size)) + size * np.eye(size),)

    @tc.kernel(workers=workers, example=example)
    def lu(a: tc.inout[f64[n, n]]) -> None:
        for k in range(n):
            for w in spatial(workers):
                for i in range(k + 1 + w, n, workers):
                    a[i, k] = a[i, k] / a[k, k]
            for i in range(k + 1, n):
                for w in spatial(workers):
                    for j in range(k + 1 + w, n, workers):
                        a[i, j] -= a[i, k] * a[k, j]

    return lu


lu = make_lu(tc.dim("n", example=19))


def main() -> None:
    (a,) = lu.example()
    factors = a.copy()
    lu(factors)
    lower = np.tril(factors, -1) + np.eye(len(a))
    print(f"sequential: largest error {np.abs(lower @ np.triu(factors) - a).max()}")


if __name__ == "__main__":
    main()
