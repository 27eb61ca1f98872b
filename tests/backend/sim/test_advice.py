"""Advice on slow accesses is tried out first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taskc.backend.sim import Report
from tests.backend.sim.checking import simulate
from tests.backend.sim.test_statistics import access


def hints(report: Report) -> list[str | int]:
    return [dict(f.details)["hint"] for f in report.findings if "hint" in dict(f.details)]


@pytest.mark.parametrize(
    ("tensor", "index", "layout"),
    [
        ("f32[32, 32]", "worker, 3", ".laid(repeat(32, 33))"),
        ("f16[32, 32]", "worker, 3", ".laid(repeat(32, 34))"),
        ("f64[32, 32]", "worker, 3", ".laid(repeat(32, 33))"),
        ("f32[32, 32]", "worker % 8 * 4, worker // 8", ".laid(repeat(32, 33))"),
        ("f32[32, 32].swizzled(1, 0, 9)", "worker, 3", ""),
        ("f32[32, 32]", "worker // 8 * 8, worker % 8 * 4", ""),  # no padding mends it
        ("f32[2048]", "worker * 2", ""),  # there are no rows
    ],
)
def test_advice_is_tried_out(tensor: str, index: str, layout: str) -> None:
    advice = hints(access(tensor, index))
    assert [str(hint).rpartition(": ")[2] for hint in advice] == ([layout] if layout else [])
    if layout:
        assert not access(tensor + layout, index).findings


def test_there_is_no_advice_that_makes_another_access_worse() -> None:
    """Odd paddings mend the column, and bring the diagonal into one bank, or into half of them."""
    report = access("f32[32, 32]", "worker, 3")
    both = access("f32[32, 32]", "worker, 3].to(f32) + s[worker, 31 - worker")
    assert hints(report)
    assert [finding.kind for finding in both.findings] == ["bank-conflict"]
    assert not hints(both)


def test_advice_about_copies_keeps_them_aligned() -> None:
    report = simulate(
        """
        kernel k(x: f32[32, 16], y: inout f32[32]) workers=32 blocks=1 stage=synchronized:
            shared s: f32[32, 16]
            for t in range(0, 4, 1):
                do cp.async(&s[worker, 4 * t], &x[worker, 4 * t], 4, True)
            do cp.async.commit()
            do cp.async.wait(0)
            y[worker] = s[worker, 0]
        """,
        np.zeros((32, 16), np.float32),
        np.zeros(32, np.float32),
        statistics=True,
    )
    conflicts = [f for f in report.findings if f.kind == "bank-conflict"]
    assert [dict(f.details)["ways"] for f in conflicts] == [16]
    assert not hints(replace(report, findings=tuple(conflicts))), "20 a row still has four ways"
