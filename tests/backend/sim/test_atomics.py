"""Atomics, and the old values that they give."""

from __future__ import annotations

import numpy as np

from tests.backend.sim.checking import simulate


def test_histogram_with_atomics_and_old_values() -> None:
    x = np.array([0, 1, 1, 3, 1, 0, 2, 1], np.int32)
    bins = np.zeros(4, np.int32)
    ranks = np.zeros(8, np.int32)
    report = simulate(
        """
        kernel k(x: i32[8], bins: inout i32[4], ranks: out i32[8]) workers=4 stage=parsed:
            grid r in 8 by 4:
                each i in spatial(4):
                    let old: i32 = atomic bins[x[r + i].to(i64)] += 1
                    ranks[r + i] = old
        """,
        x,
        bins,
        ranks,
    )
    assert report.ok, report
    assert bins.tolist() == [2, 4, 1, 1]
    assert ranks.tolist() == [0, 0, 1, 0, 2, 1, 0, 3]
