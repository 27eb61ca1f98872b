"""The line with the current activity, on a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from taskc.progress import Progress, counted, report
from tests.commands.conftest import on_a_terminal
from tests.onnx.models import model, node, tensor

_COMMAND = """
from taskc import progress as module
from taskc.progress import Progress
module._PATIENCE = 0.0
with Progress() as progress:
    progress("first")
    progress("second", 0.5)
    progress.clear()
    progress("third", 0.75)
"""


def _shown(program: str) -> str:
    """The text on a terminal; a program that is piped shows nothing."""
    command = [sys.executable, "-c", program]
    piped = subprocess.run(command, capture_output=True, check=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")
    return on_a_terminal(command)


def test_what_takes_longer_has_a_bar() -> None:
    shown = _shown(_COMMAND)
    assert "first …" in shown
    assert re.search(r"second .*━.* 50%", shown)
    assert re.search(r"third .*━.* 75%", shown)


_CALL = """
import logging, sys
import numpy as np
import taskc as tc
from taskc import progress
progress._PATIENCE = {patience}
{before}
model = tc.compile(sys.argv[1])
assert model(np.ones((8, 8), np.float32)).shape == (8, 8)
assert ("rich" in sys.modules) == {loads_rich}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model of two kernels."""
    nodes = [node("Softmax", ["x"], ["s"]), node("MatMul", ["s", "x"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, [tensor("x", 8, 8)], ["y"]).SerializeToString())
    return path


def _called(
    path: Path, patience: float = 0.0, before: str = "", *, loads_rich: bool = False
) -> list[str]:
    return [
        sys.executable,
        "-c",
        _CALL.format(patience=patience, before=before, loads_rich=loads_rich),
        str(path),
    ]


def test_a_models_first_call_tells_what_it_does(path: Path, tmp_path: Path) -> None:
    cache = {"TASKC_CACHE": str(tmp_path / "cache")}
    shown = on_a_terminal(_called(path, loads_rich=True), **cache)
    assert f"reading {path} …" in shown
    assert "tracing main …" in shown
    assert "fusing main …" in shown
    first = re.search(r"compiling kernel 1 of 2: (\w+) .* 0%", shown)
    second = re.search(r"compiling kernel 2 of 2: (\w+) .* 50%", shown)
    assert first is not None
    assert second is not None
    assert "softmax" in (first[1], second[1])
    assert any("matmul" in found[1] for found in (first, second))
    assert shown.endswith("\x1b[2K")  # erased
    assert not on_a_terminal(_called(path), **cache)  # the cache has it


@pytest.mark.parametrize(
    "command",
    [
        {"patience": 1000.0},
        {"before": "logging.getLogger('taskc').setLevel(logging.ERROR)"},
        {"before": "logging.disable()"},
    ],
)
def test_a_quick_or_silent_call_shows_nothing(
    command: dict[str, Any], path: Path, tmp_path: Path
) -> None:
    assert not on_a_terminal(_called(path, **command), TASKC_CACHE=str(tmp_path / "cache"))


def test_a_dumb_terminal_shows_nothing(path: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert not on_a_terminal(_called(path), TERM="dumb", TASKC_CACHE=cache)


def test_a_pipe_gets_nothing(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TASKC_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(_called(path), capture_output=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_command_shows_it_on_its_own_line(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taskc", "compile", str(path)]
    shown = on_a_terminal(command, TASKC_CACHE=str(tmp_path / "cache"))
    assert f"compiling {path} …" in shown
    assert "compiling kernel 2 of 2: " in shown


def test_other_threads_and_results_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float | None]] = []
    monkeypatch.setattr(Progress, "__call__", lambda self, *given: seen.append(given))
    with Progress():
        for one in counted("kernel", ["a", "b"], iter([1, 2])):
            seen.append((str(one), None))
        thread = threading.Thread(target=report, args=("elsewhere",))
        thread.start()
        thread.join()
    report("outside")
    assert seen == [
        ("kernel 1 of 2: a", 0.0), ("1", None), ("kernel 2 of 2: b", 0.5), ("2", None)
    ]  # fmt: skip
