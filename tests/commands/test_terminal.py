"""What a terminal is shown, and what others are."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.commands.conftest import process


def on_a_terminal(command: list[str], **environment: str) -> str:
    """What a command writes to a terminal, standard error included."""
    pty = pytest.importorskip("pty")
    own, theirs = pty.openpty()
    names = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    variables = {**names, "TERM": "xterm", **environment}
    started = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(own, 65536):
            pieces.append(piece)
    except OSError:  # Linux says so when the other side has closed
        pass
    os.close(own)
    started.wait()
    return b"".join(pieces).decode()


def test_colours_and_progress_are_for_terminals_only() -> None:
    command = [sys.executable, "-m", "taskc", "check", "03_kernels.py:racy"]
    coloured = on_a_terminal(command)
    assert "\x1b[1;31merror:\x1b[0m race" in coloured
    assert "proving (1 of 23) …" in coloured
    plain = on_a_terminal(command, NO_COLOR="1").replace("\r\x1b[K", "")
    assert "\x1b" not in plain
    assert "error: race" in plain
    piped = process("check", "03_kernels.py:racy", env={**os.environ, "FORCE_COLOR": "1"})
    assert "\x1b" not in piped.stdout + piped.stderr
    assert "proving" not in piped.stderr


def test_what_takes_longer_has_a_bar() -> None:
    program = """
from taskc.commands import terminal
terminal._PATIENCE = 0.0
with terminal.Progress() as progress:
    progress("first")
    progress("second", 0.5)
    progress.clear()
    progress("third", 0.75)
"""
    shown = on_a_terminal([sys.executable, "-c", program])
    assert "first …" in shown
    assert re.search(r"second .*━.* 50%", shown)
    assert re.search(r"third .*━.* 75%", shown)
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")


def test_a_terminal_without_unicode_still_gets_an_answer() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = process("map", "repeat(2) * spatial(40)", env=environment)
    assert ended.returncode == 0
    assert "mapping" in ended.stdout
