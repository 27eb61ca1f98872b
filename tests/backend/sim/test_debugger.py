"""Python's debugger in a kernel: what a person at pdb sees, and how a run goes on or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, spatial
from taskc.runtime import driver

ROOT = Path(__file__).parents[3]
X = np.arange(16, dtype=np.float32)
SCRIPT = """\
import numpy as np
import taskc as tc
from taskc import f32, spatial

@tc.kernel(workers=4)
def scale(x: f32[16], y: tc.out[f32[16]]):
    for (k,) in tc.tiles((16,), by=(8,)):
        acc = tc.tile(f32, spatial(4).repeat(2), 0)
        for i in spatial(4).repeat(2):
            twice = x[k + i] * 2
            if twice > 20:
                breakpoint()
            acc[i] = twice
        for i in spatial(4).repeat(2):
            y[k + i] = acc[i]

print(scale(np.arange(16, dtype=np.float32))[:4])
"""


def session(
    tmp_path: Path, lines: str, *, closed: bool = False, **environment: str
) -> tuple[int, str, str]:
    """A script with a breakpoint, and what is typed there."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command = [sys.executable, str(file)]
    if closed:
        command = ["sh", "-c", 'exec "$0" "$@" <&-', *command]
    ended = subprocess.run(
        command,
        input=lines,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout.replace(str(tmp_path), ""), ended.stderr


def test_a_session(tmp_path: Path) -> None:
    typed = "p i, twice, k\nw\np acc.shape, acc[4].item()\nlocals().keys()\np np.pi\np [k for _ in range(2)]\n"
    code, out, _ = session(tmp_path, typed + "n\nn\nc\nc\n")
    where = "> /script.py({})scale()\n-> {}\n(Pdb) "
    assert out == (
        where.format(12, "breakpoint()")
        + "(4, 24.0, 8)\n(Pdb) "
        + where.format(12, "breakpoint()")
        + "((8,), 0.0)\n(Pdb) "
        + "dict_keys(['k', 'i', 'twice', 'x', 'y', 'acc'])\n(Pdb) "
        + "3.141592653589793\n(Pdb) [8, 8]\n(Pdb) "
        + where.format(13, "acc[i] = twice")
        + where.format(10, "twice = x[k + i] * 2")
        + where.format(12, "breakpoint()")
        + "[0. 2. 4. 6.]\n"
    )
    assert code == 0


def test_a_line_is_set(tmp_path: Path) -> None:
    _, out, _ = session(tmp_path, "b 15\nc\nc\np k, i, acc[i].item()\ncl 1\nc\n")
    assert "(15)scale()\n-> y[k + i] = acc[i]\n(Pdb) (8, 4, 24.0)\n" in out
    assert out.endswith("[0. 2. 4. 6.]\n")


@pytest.mark.parametrize("typed", ["q\n", "", "p i\n"])
def test_a_run_is_ended(tmp_path: Path, typed: str) -> None:
    """By `q`, and where the standard input ends."""
    code, _, errors = session(tmp_path, typed)
    assert code == 1
    assert "12:17: breakpoint: the run was ended here, in the debugger\n" in errors


def test_nobody_is_asked(tmp_path: Path) -> None:
    code, out, errors = session(tmp_path, "", closed=True)
    assert (code, out) == (1, "")
    assert (
        "12:17: breakpoint: there is no standard input for a debugger to read"
        " (PYTHONBREAKPOINT=0 leaves breakpoints out)\n" in errors
    )
    assert session(tmp_path, "", closed=True, PYTHONBREAKPOINT="0") == (0, "[0. 2. 4. 6.]\n", "")


def test_another_target_says_that_it_leaves_them_out(tmp_path: Path) -> None:
    code, out, errors = session(tmp_path, "", TASKC_TARGET="cpu")
    assert (code, out) == (0, "[0. 2. 4. 6.]\n")
    assert errors.endswith(
        "12:17: breakpoint() is left out on the target cpu; TASKC_TARGET=sim stops there\n"
    )


# --- another hook ----------------------------------------------------------------------------


@tc.kernel(workers=4)
def kernel(x: f32[16], y: tc.out[f32[16]]):
    for i in spatial(4).repeat(4):
        breakpoint()
        y[i] = x[i]


def test_a_hook_gets_the_kernels_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[FrameType] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: frames.append(sys._getframe(1)))
    y = driver.call(kernel, (X,), {}, target="sim")
    assert (y == X).all()
    assert [frame.f_locals["i"] for frame in frames] == [0, 1, 2, 3]
    (frame, *_) = frames
    assert frame.f_code.co_filename == __file__
    assert frame.f_code.co_name == "kernel"
    assert frame.f_lineno == kernel.ir.loc.line + 2
    assert frame.f_back is None
    assert not frame.f_locals["x"].flags.writeable
    assert frame.f_globals["stop"].task == (0,)


def test_what_a_hook_raises_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherError(Exception):
        pass

    def hook() -> None:
        raise OtherError

    monkeypatch.setattr(sys, "breakpointhook", hook)
    with pytest.raises(OtherError):
        driver.call(kernel, (X,), {}, target="sim")


def test_an_interrupt_is_not_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still, and a debugger that reads lines would be left alone with the input."""
    monkeypatch.setattr(signal, "default_int_handler", signal.default_int_handler)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    over = threading.Event()
    stopped: list[Any] = []

    def hook() -> None:
        if not stopped:
            stopped.append(None)
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(0.2)

    monkeypatch.setattr(sys, "breakpointhook", hook)
    try:
        y = driver.call(kernel, (X,), {}, target="sim")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (y == X).all()


def test_the_checker_stops_in_the_authors_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[FrameType] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: frames.append(sys._getframe(1)))
    assert not tc.check(kernel, [X])
    assert len(frames) == 4
