"""Reductions and scans by all workers."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.ir import arithmetic
from taskc.ir.types import f32
from tests.backend.sim.checking import simulate


@pytest.mark.parametrize("operator", ["+", "min", "max", "*"])
def test_reduce_folds_slots_and_then_a_tree_of_owners(operator: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 24)).astype(np.float32)
    y = np.zeros(4, np.float32)
    report = simulate(
        f"""
        kernel k(x: f32[4, 24], y: out f32[4]) workers=6 stage=parsed:
            tile t: f32[4, 24] by repeat(4, 2).spatial(1, 6).repeat(1, 2)
            each (i, j) in repeat(4, 2).spatial(1, 6).repeat(1, 2):
                t[i, j] = x[i, j]
            tile s: f32[4] by replicate(6).repeat(4)
            reduce s = {operator} over t axis=1
            move y[i] = s[i] for i in 4
        """,
        x,
        y,
    )

    def fold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return arithmetic.binary(operator, a, b, f32)

    parts = []
    for worker in range(6):
        own = [x[:, 12 * j + 2 * worker + r] for j in range(2) for r in range(2)]
        total = own[0]
        for value in own[1:]:
            total = fold(total, value)
        parts.append(total)
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [
            fold(parts[i], parts[i + half]) if i + half < len(parts) else parts[i]
            for i in range(half)
        ]
    assert report.ok, report
    np.testing.assert_array_equal(y, parts[0])


@pytest.mark.parametrize("exclusive", [False, True])
def test_scan(exclusive: bool) -> None:
    x = np.arange(3, 19, dtype=np.int32).reshape(2, 8)
    y = np.zeros((2, 8), np.int32)
    report = simulate(
        f"""
        kernel k(x: i32[2, 8], y: out i32[2, 8]) workers=4 stage=parsed:
            tile t: i32[2, 8] by spatial(2, 2).repeat(1, 4)
            move t[i, j] = x[i, j] for (i, j) in (2, 8)
            tile s: i32[2, 8] by spatial(2, 2).repeat(1, 4)
            scan s = + over t axis=1 {"exclusive" if exclusive else ""}
            move y[i, j] = s[i, j] for (i, j) in (2, 8)
        """,
        x,
        y,
    )
    expected = np.cumsum(x, axis=1)
    assert report.ok, report
    assert y.tolist() == (expected - x if exclusive else expected).tolist()
