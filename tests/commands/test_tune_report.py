"""taskc tune --report: where the page goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskc.commands import tune
from taskc.tune.tuner import Outcome, Trial, Tuned

ASKED = ("tune", "matmul", "--m", "64", "--n", "64", "--k", "64", "--report")


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The spaces that were tuned."""
    spaces = []

    def found(space: Any, **options: Any) -> Tuned:
        spaces.append(space)
        trial = Trial(space.default, 1e-5, Outcome("measured", 1e-5, 0.01, 9), True)
        return Tuned(space, space.default, (trial,), (), {}, 1.0, ())

    monkeypatch.setattr(tune, "tuned", found)
    return spaces


def test_the_report_is_written(run: Any, tuned: list[Any], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("of before")
    ended = run(*ASKED, str(page))
    assert (ended.code, ended.err) == (0, "")
    assert "<h1>matmul 64 x 64 x 64 in f32</h1>" in page.read_text(encoding="utf-8")


def test_a_place_that_takes_no_report_is_refused_before_tuning(
    run: Any, tuned: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked.html"
    locked.write_text("")
    monkeypatch.setattr(
        "os.access", lambda path, mode: path != locked
    )  # for root nothing is locked
    reasons = {
        tmp_path: "it is a folder",
        tmp_path / "none" / "page.html": f"there is no folder {tmp_path / 'none'}",
        locked: "permission denied",
    }
    for place, reason in reasons.items():
        ended = run(*ASKED, str(place))
        said = f"error: the report can't be written to {place}: {reason}\n"
        assert (ended.code, ended.out, ended.err) == (2, "", said)
    assert not tuned
