"""taskc profile: the table, JSON, the page, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from taskc.commands import profile as command
from tests.pages import Page


def test_a_program_call_by_call(run: Any) -> None:
    ended = run("profile", "programs.py:moved()", "--repeat", "3")
    assert (ended.code, ended.err) == (0, "")
    headings, first, second, empty, name, times, bytes_, *memory = ended.out.splitlines()
    assert headings.split() == [*command._HEADINGS]
    assert re.search(r" 32 B +1 x +step +1 +programs.py:17, programs.py:41$", first)
    assert re.search(r" +step_moved +1 +programs.py:18, programs.py:41, programs.py:42$", second)
    assert empty == ""
    assert re.fullmatch(r"program: 2 calls, \d threads?, medians of 3 rounds", name)
    assert re.fullmatch(r"[\d.]+ \w?s by one call; [\d.]+ \w?s call by call, predicted .*", times)
    assert re.fullmatch(r"64 B at least, 64 B loaded and stored; 4 operations", bytes_)
    assert [line.split()[:3] for line in memory][1] == ["activations", "64", "bytes"]
    assert memory[1].endswith("the arena; 16 are needed at once")
    assert memory[-1].startswith("note: what is predicted counts with a usual processor")


def test_json_has_every_call(run: Any) -> None:
    answer = json.loads(run("profile", "programs.py:twice", "--json", "--repeat", "3").out)
    assert [call["kernel"] for call in answer["calls"]] == ["step", "step"]
    assert answer["sum"]["bytes"] == 64
    assert answer["memory"]["activations"] == 64
    assert answer["memory"]["rooms"][0]["tensors"] == ["t"]
    assert answer["rounds"] == 3
    assert {"seconds", "predicted", "roofline", "moved", "operations", "origins", "times"} <= set(
        answer["calls"][0]
    )


def test_a_kernel_is_a_program_of_one_call(run: Any) -> None:
    ended = run("profile", "03_kernels.py:add", "--repeat", "3")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r" 768 B +1 x +add +1 ", ended.out)


def test_equal_kernels_are_one_row_where_they_are_many(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_MOST_CALLS", 1)
    lines = run("profile", "programs.py:twice", "--repeat", "3").out.splitlines()
    assert re.search(r" 64 B +1 x +step +2 +programs.py:17, programs.py:18$", lines[1])
    assert lines[2] == ""
    lines = run("profile", "programs.py:twice", "--repeat", "3", "--calls").out.splitlines()
    assert [" step " in line for line in lines[1:3]] == [True, True]


@pytest.mark.usefixtures("model_file")
def test_a_model_names_its_nodes(run: Any) -> None:
    ended = run("profile", "model.onnx", "--dim", "n=4", "--repeat", "3")
    assert (ended.code, ended.err) == (0, "")
    assert "MatMul node 'head'" in ended.out
    assert "Softmax node that makes 'y'" in ended.out
    assert ".py:" not in ended.out
    answer = json.loads(run("profile", "model.onnx", "--json", "--repeat", "3").out)
    origins = {origin for call in answer["calls"] for origin in call["origins"]}
    assert "Gather node 'look up'" in origins
    assert answer["memory"]["weights"] >= 4 * 8 * 5


def test_the_page_is_written(run: Any, tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    ended = run("profile", "programs.py:twice", "--repeat", "3", "--html", str(place))
    assert ended.out.endswith(f"the page is {place}\n")
    page = Page(place.read_text(encoding="utf-8"))
    assert page.texts("h1") == ["twice"]
    assert {"Calls over time", "Memory"} <= {*page.texts("h2")}


def test_what_is_refused(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run("profile", "programs.py:twice", "--dim", "n=4")
    said = "error: --dim and --input are of models: a kernel has its own example inputs\n"
    assert (ended.code, ended.out, ended.err) == (2, "", said)
    monkeypatch.setattr(command, "profile", lambda *rest: pytest.fail("it was run"))
    ended = run("profile", "programs.py:twice", "--html", str(tmp_path / "none" / "page.html"))
    assert ended.code == 2
    assert ended.err.startswith("error: the report can't be written to ")
    assert run("profile", "programs.py:twice", "--repeat", "0").code == 2
