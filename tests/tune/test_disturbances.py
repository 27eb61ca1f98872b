"""What the system says of other processes and of quotas, and when it is worth a warning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskc.tune import timing as disturbances
from taskc.tune.timing import Disturbances, Watch


def test_what_is_warned_of() -> None:
    assert Disturbances().warnings == ()
    assert Disturbances(0.2, 0, 0.2, 0.04).warnings == ()
    assert Disturbances(1.26, 3, 0.5, 0.2).warnings == (
        "the machine is busy: others used 1.3 processors",
        "the quota of processor time ran out 3 times",
        "the clock is restless: 50% of the samples were off by more than 5%",
        "the clock is slow: it has been 20% faster",
    )


def test_a_watch_sees_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now: dict[str, Any] = {"perf_counter": 10.0, "process_time": 1.0, "busy": 100.0, "throttled": 7}
    clock = SimpleNamespace(
        perf_counter=lambda: now["perf_counter"], process_time=lambda: now["process_time"]
    )
    monkeypatch.setattr(disturbances, "time", clock)
    monkeypatch.setattr(disturbances, "_busy", lambda: now["busy"])
    monkeypatch.setattr(disturbances, "_throttled", lambda: now["throttled"])
    watch = Watch()
    now.update(perf_counter=12.0, process_time=2.5, busy=104.0, throttled=9)
    assert watch.disturbances(0.1, 0.2) == Disturbances((4.0 - 1.5) / 2, 2, 0.1, 0.2)
    now.update(perf_counter=10.1)  # too short for ticks
    assert watch.disturbances() == Disturbances(None, 2, 0.0)
    now.update(busy=None, throttled=None)
    assert watch.disturbances() == Disturbances()


def test_what_the_system_says(tmp_path: Path) -> None:
    assert disturbances._busy(tmp_path / "stat") is None
    (tmp_path / "stat").write_text("cpu  100 200 300 4000 500 60 7 8 0 0\ncpu0 1 2 3\n")
    assert disturbances._busy(tmp_path / "stat") == pytest.approx(6.67)
    assert disturbances._throttled(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.stat").write_text("nr_periods 10\nnr_throttled 4\n")
    assert disturbances._throttled(tmp_path) == 4
    (tmp_path / "cpu.stat").write_text("usage_usec 9\nnr_throttled 5\nthrottled_usec 1\n")
    assert disturbances._throttled(tmp_path) == 5
