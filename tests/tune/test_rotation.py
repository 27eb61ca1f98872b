"""Copies of operands that calls take in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat
from taskc.tune import timing as rotation
from taskc.tune.operands import Operands
from taskc.tune.timing import in_turn, last_cache_bytes, rotated


def operands(floats: int) -> Operands:
    return Operands((np.zeros(floats // 2, np.float32),), (np.zeros(floats // 2, np.float32),))


@pytest.mark.parametrize(
    ("floats", "available", "copies"),
    [(1 << 10, 1 << 40, 257), (1 << 18, 1 << 40, 2), (1 << 20, 1 << 40, 2), (1 << 18, 1 << 10, 1)],
)
def test_more_is_touched_than_the_caches_hold(
    monkeypatch: pytest.MonkeyPatch, floats: int, available: int, copies: int
) -> None:
    monkeypatch.setattr(rotation, "last_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(rotation, "_available", lambda: available)
    assert len(rotated(operands(floats))) == copies


def test_the_largest_cache(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == 1 << 25
    for number, size in enumerate(("32K", "1024K", "3M", "?")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert last_cache_bytes(tmp_path) == 3 << 20


def test_each_call_takes_the_next_copy() -> None:
    @tc.kernel(workers=1)
    def copy(x: f32[1], y: tc.out[f32[1]]):
        for (i,) in repeat(1):
            y[i] = x[i]

    copies = [
        Operands((np.full(1, i, np.float32),), (np.zeros(1, np.float32),)) for i in range(1, 4)
    ]
    call = in_turn(copy, tuple(copies))
    seen = []
    for _ in range(4):
        call()
        seen.append([float(one.outputs[0][0]) for one in copies])
    assert seen == [[1, 0, 0], [1, 2, 0], [1, 2, 3], [1, 2, 3]]
