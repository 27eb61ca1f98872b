"""taskc map: a mapping's picture, and its facts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def test_map_draws_a_mapping(run: Any, tmp_path: Path) -> None:
    svg = tmp_path / "picture.svg"
    ended = run("map", "spatial(2,4).repeat(2,2)", "--worker", "3", "--svg", str(svg))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[:2] == [
        "0:0  0:1  1:0  1:1  2:0  2:1  3:0  3:1",
        "0:2  0:3  1:2  1:3  2:2  2:3  3:2  3:3",
    ]
    assert re.search(r"^workers +8$", ended.out, re.MULTILINE)
    assert re.search(r"^shape +4 × 8$", ended.out, re.MULTILINE)
    assert re.search(r"^covers +every task once$", ended.out, re.MULTILINE)
    assert ended.out.endswith("worker 3: (0, 6), (0, 7), (1, 6), (1, 7)\n")
    assert svg.read_text(encoding="utf-8").startswith("<svg")


def test_map_says_what_is_replicated_and_what_is_left_out(run: Any) -> None:
    assert re.search(r"replicated +yes", run("map", "replicate(2) * spatial(4)").out)
    partial = run("map", "mapping((3,), 2, [[(0,)], [(2,)]])").out
    assert re.search(r"covers +2 of the 3 tasks", partial)


@pytest.mark.parametrize(
    ("text", "column"), [("spatial(4,8).repeat(2,2", 24), ("spatial(4) + repeat(2)", 12)]
)
def test_map_points_at_a_mistake(run: Any, text: str, column: int) -> None:
    ended = run("map", text)
    assert (ended.code, ended.out) == (1, "")
    first, source, caret = ended.err.splitlines()
    assert first.startswith(f"mapping:1:{column}: error: expected ")
    assert source == f"      {text}"
    assert caret.index("^") == 6 + column - 1


def test_map_refuses_a_worker_that_is_not_there(run: Any) -> None:
    ended = run("map", "spatial(4)", "--worker", "4")
    assert (ended.code, ended.err) == (2, "error: there is no worker 4: they are 0 to 3\n")


def test_large_mappings_are_told_at_once_or_refused(run: Any) -> None:
    ran = run("map", "spatial(2000000000)")
    assert ran.code == 0
    assert "every task once" in ran.out
    for text, said in (
        ("spatial(4611686018427387905)", "is too large"),
        ("replicate(4, rank=99999999999999999999999).repeat(2, 1)", "needs a rank of 0 to 32"),
        (
            "mapping((2, 9223372036854775808), 2, [[(0, 0), (1, 1)], [(0, 1), None]])",
            "is too large",
        ),
    ):
        ran = run("map", text)
        assert ran.code == 1
        assert said in ran.err
    ran = run("map", "repeat(2000000000)", "--worker", "0")
    assert ran.code == 2
    assert "10000 are the most that are listed" in ran.err
