"""A lone worker's loops against Numba's, on one thread: what is sequential along an axis.

Both sides are the same loops, line by line, with the same temporaries: LU, Cholesky, nussinov, crc16, Seidel and the
like. `--quick` takes fewer pairs; `--only NAME` one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from report import Row, finish, parse_options

Arrays = tuple[Any, ...]
QUICK, LONG = 0.3, 2.0  # seconds for the pairs of a case


def main() -> None:
    options = parse_options(__doc__ or "")
    if find_spec("numba") is None:
        sys.exit("numba is not installed: pip install numba")
    import scalar_loops_numba as theirs
    import scalar_loops_taskc as ours

    from taskc.tune.timing import Probe, pairs

    probe, rows = Probe(1), []
    for name, inputs, state in cases():
        own = prepared(getattr(ours, name), inputs, state)
        other = prepared(getattr(theirs, name), inputs, state)
        for left, right in zip(own(), other(), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-9, err_msg=name)
        found = pairs(own, other, probe, budget=QUICK if options.quick else LONG)
        rows.append(Row.paired("scalar loops", name, 1, "numba", found))
        print(f"  {name}: {found.ratio:.2f}", flush=True)
    finish(rows, options.json)


def prepared(function: Callable[..., Any], inputs: Arrays, state: Arrays) -> Callable[[], Arrays]:
    """A call on the same numbers each time: what it updates in place is filled anew."""
    updated = tuple(np.empty_like(array) for array in state)

    def call() -> Arrays:
        for array, first in zip(updated, state, strict=True):
            np.copyto(array, first)
        function(*inputs, *updated)
        return updated

    return call


def cases() -> list[tuple[str, Arrays, Arrays]]:
    """Of each: its name, what it reads, and what it updates."""
    random = np.random.default_rng(1)
    matrix = random.random((192, 192))
    definite = matrix @ matrix.T + 192 * np.eye(192)
    lower = np.tril(matrix) + 8 * np.eye(192)
    bands = [random.random(50_000) for _ in range(3)]
    text, other = (random.integers(0, 4, 500).astype(np.uint8) for _ in range(2))
    sizes = random.integers(0, 12, 4000)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    columns = random.integers(0, 4000, int(starts[-1])).astype(np.int32)
    values = random.random(int(starts[-1]))
    return [
        ("crc16", (random.integers(0, 256, 50_000).astype(np.uint8),), (np.zeros(1, np.int32),)),
        ("nussinov", (random.integers(0, 4, 160).astype(np.int32),), (np.zeros((160, 160), np.int32),)),
        ("seidel", (4,), (random.random((160, 160)),)),
        ("lu", (), (definite,)),
        ("cholesky", (), (definite,)),
        ("floyd_warshall", (), (random.integers(1, 100, (128, 128)).astype(np.int32),)),
        ("triangular_solve", (lower, random.random(192)), (np.zeros(192),)),
        ("thomas", (*bands, 4 + random.random(50_000)), (np.zeros(50_000), np.zeros(50_000))),
        ("recursive_filter", (random.random(100_000),), (np.zeros(100_000),)),
        ("edit_distance", (text, other), (np.zeros((501, 501), np.int32),)),
        ("mandelbrot", (60, np.linspace(-2, 0.5, 100)), (np.zeros((100, 100), np.int32),)),
        ("collatz", (2000,), (np.zeros(1, np.int64),)),
        ("sparse_product", (random.random(4000), starts, columns, values), (np.zeros(4000),)),
        ("histogram", (random.integers(0, 256, 100_000).astype(np.int32),), (np.zeros(256, np.int32),)),
        ("insertion_sort", (), (random.random(600),)),
        ("search", (random.integers(8, 99, 100_000),), (np.zeros(1, np.int64),)),
        ("newton", (1 + 100 * random.random(2000),), (np.zeros(2000),)),
        ("xorshift", (100_000,), (np.full(1, 88172645463325252, np.uint64),)),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
