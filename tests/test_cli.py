"""The command line itself: its exit codes, and what is around the commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc.commands import show as show_command
from tests.abuse.mutants import run_mutant_of_a_command
from tests.commands.conftest import folder, in_the_folder, run

__all__ = ["folder", "in_the_folder", "run"]  # fixtures


def test_version_and_help(run: Any) -> None:
    assert run("--version").out == f"taskc {tc.__version__}\n"
    text = run("--help").out
    for command in ("demo", "show", "run", "check", "map", "mutate", "db", "doctor"):
        assert re.search(rf"^    {command} ", text, re.MULTILINE)
        assert run(command, "--help").code == 0


def test_a_wrong_command_line_is_code_2(run: Any) -> None:
    assert run().code == 2
    assert run("dance").code == 2
    assert run("check", "03_kernels.py:add", "--seeds", "0").code == 2
    assert run("show", "03_kernels.py:add", "--stage", "late").code == 2


def test_no_name_has_a_character_of_number_0(run: Any) -> None:
    ran = run("map", "spatial(4)", "--svg", "a\0.svg")
    assert ran.code == 2
    assert ran.err == "error: an argument has a character of number 0\n"


def test_an_interrupt_is_code_130(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(show_command, "run", interrupted)
    ended = run("show", "03_kernels.py:add")
    assert (ended.code, ended.out, ended.err) == (130, "", "interrupted\n")


def test_an_internal_error_shows_the_program(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(options: object) -> int:
        raise tc.InternalError("a pass lost its way", "kernel f():")

    monkeypatch.setattr(show_command, "run", wrong)
    ended = run("show", "03_kernels.py:add")
    assert ended.code == 1
    assert ended.err.startswith("internal error: a pass lost its way (this is a bug in taskc; ")
    assert ended.err.endswith("kernel f():\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "taskc", "show", "03_kernels.py:doubled", "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        assert started.stderr.read() == b""
        assert started.wait() == 141


NO_SPACE = "error: the output can't be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("arguments", "streams", "code", "said"),
    [
        ("map 'spatial(4)'", ">&-", 3, "error: the standard output is closed\n"),
        ("map 'spatial(4)'", ">/dev/full", 3, NO_SPACE),
        (
            "map 'mapping((2,), 1, [[(0,), (1,)]]).spatial(900)' --worker 7",
            ">/dev/full",
            3,
            NO_SPACE,
        ),
        ("--help", ">/dev/full", 3, NO_SPACE),
        ("map 'spatial(4)'", ">/dev/full 2>&-", 3, ""),
        ("map 'spatial(4)'", ">/dev/null 2>&-", 0, ""),
        ("map 'spatiall(4)'", "2>/dev/full", 1, ""),
        ("map 'spatiall(4)'", "2>&-", 1, ""),
    ],
)
def test_an_output_that_takes_nothing(arguments: str, streams: str, code: int, said: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m taskc {arguments} {streams}"],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (code, said)


def test_starting_loads_neither_compiler_nor_colours() -> None:
    heavy = ["rich", "lark", "taskc.backend.sim", "taskc.passes.pipeline", "taskc.runtime.checking"]
    program = f"import sys, taskc; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_the_names_of_onnx_load_when_asked_for() -> None:
    program = (
        "import sys; import taskc as tc; print('taskc.onnx' in sys.modules);"
        "tc.onnx.operator, tc.onnx.Call, tc.onnx.register_pass, tc.onnx.extract;"
        "print('onnx' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "False\nFalse\n"


def test_a_command_is_loaded_without_the_others() -> None:
    program = (
        "import sys; from taskc.cli import COMMANDS, main; main(['map', 'spatial(4)']);"
        "print([name for name in COMMANDS if f'taskc.commands.{name}' in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "['map']"


def test_what_nobody_thought_of_is_an_internal_error_without_a_traceback(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(options: object) -> int:
        raise ValueError("math domain\x1b[2J error")

    monkeypatch.setattr(show_command, "run", wrong)
    ended = run("show", "03_kernels.py:add")
    assert ended.code == 1
    assert ended.err.startswith(r"internal error: ValueError: math domain\x1b[2J error, at ")
    assert "please report it" in ended.err
    assert "with TASKC_DUMP=FOLDER" in ended.err
    assert "Traceback" not in ended.err
    monkeypatch.setenv("TASKC_DUMP", str(tmp_path / "dump"))
    assert "the traceback is in " in run("show", "03_kernels.py:add").err
    written = (tmp_path / "dump" / "traceback.txt").read_text(encoding="utf-8")
    assert written.startswith("Traceback (most recent call last)")


def test_too_little_memory_is_a_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(options: object) -> int:
        raise MemoryError

    monkeypatch.setattr(show_command, "run", wrong)
    ended = run("show", "03_kernels.py:add")
    assert (ended.code, ended.err) == (1, "error: there isn't enough memory\n")


@pytest.mark.parametrize("number", range(6))
def test_mutants_of_commands(number: int) -> None:
    run_mutant_of_a_command(number)
