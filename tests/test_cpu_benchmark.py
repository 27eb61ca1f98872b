"""What benchmarks/cpu.py says: whose times are taken, what is printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A file of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


def test_what_is_profiled_has_its_own_times(load: Callable[[str], Any]) -> None:
    """A pair's calls are one that wakes threads and, of what takes a millisecond, one that is timed."""

    class Peer:
        calls = 0

        def __call__(self) -> None:
            self.calls += 1
            time.sleep(2e-3)

        def seconds(self) -> list[float]:
            rounds = range((self.calls - 2) // 2)
            return [5.0, 5.0, *[own for i in rounds for own in (7.0, 3.0 + i % 2)]]

    found = load("pairs").pairs(lambda: None, Peer(), lambda: time.sleep(1e-4), budget=0)
    assert found.theirs in (3000, 3500, 4000)


def test_benchmarks_are_summed_up(
    load: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = load("report")
    row = report.Row
    report.summary(
        [
            row("chain", "a", 1, 2.0, "one", 6.0, 3.0),
            row("chain", "a", 1, 2.0, "other", 4.0, 2.0),
            row("chain", "b", 1, 0.5, "one", 0.25, 0.5),
            row("compile: chain", "a", 1, 300.0),
            row("chain", "a", 2, 1.25, "one", 2.5, 2.0),
            row("chain", "b", 2, 0.5, "one", 0.5, 1.0),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "chain, 1 thread(s), to the fastest peer: geometric mean 1.00 of 2, 1 losses, least 0.50: b",
        "chain, 2 thread(s), to the fastest peer: geometric mean 1.41 of 2, 0 losses, least 1.00: b",
        "chain, 2 threads to 1, where it takes over 1 ms: geometric mean 1.60 of 1, least 1.60: a",
    ]
