"""taskc demo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def test_the_demo_works_anywhere(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "def linear(x: f32[m, k], w: f32[k, n]" in ended.out
    assert "0:0   0:1   1:0" in ended.out
    assert re.search(r"^    lean +the same bits after ", ended.out, re.MULTILINE)
    assert re.search(
        r"^    linear: (no findings|\d+ warnings?), \d+ programs run$", ended.out, re.M
    )
    assert "whole numbers:  equal, bit for bit" in ended.out
    assert re.search(r"^    sm_90a, by NVRTC: \d+ bytes in \d+ ms$", ended.out, re.MULTILINE)
    assert "and spills 0 bytes;" in ended.out
    assert re.search(r"^    demo_race.py:\d+:\d+: error: race: ", ended.out, re.MULTILINE)
    assert re.search(r"^ +\^+$", ended.out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []
