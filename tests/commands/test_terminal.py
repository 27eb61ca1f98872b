"""What a terminal is shown, and what others are."""

from __future__ import annotations

import os
import sys

from tests.commands.conftest import on_a_terminal, process


def test_colours_and_progress_are_for_terminals_only() -> None:
    command = [sys.executable, "-m", "taskc", "check", "03_kernels.py:racy"]
    coloured = on_a_terminal(command)
    assert "\x1b[1;31merror:\x1b[0m race" in coloured
    assert "proving (1 of 24) …" in coloured
    plain = on_a_terminal(command, NO_COLOR="1").replace("\r\x1b[K", "")
    assert "\x1b" not in plain
    assert "error: race" in plain
    piped = process("check", "03_kernels.py:racy", env={**os.environ, "FORCE_COLOR": "1"})
    assert "\x1b" not in piped.stdout + piped.stderr
    assert "proving" not in piped.stderr


def test_a_terminal_without_unicode_still_gets_an_answer() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = process("map", "repeat(2) * spatial(40)", env=environment)
    assert ended.returncode == 0
    assert "mapping" in ended.stdout
