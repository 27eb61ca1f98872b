"""A folder of kernels, and a command that runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taskc.cli import main

KERNELS = """\
import taskc as tc
from taskc import f16, f32, repeat, spatial

from a_helper import WORKERS


@tc.kernel(workers=WORKERS)
def add(a: f32[64], b: f32[64], c: tc.out[f32[64]]):
    for i in spatial(32) * repeat(2):
        c[i] = a[i] + b[i]


@tc.kernel(workers=32)
def racy(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    for i in spatial(32) * repeat(2):
        s[i] = x[i]
        y[i] = s[63 - i]


def doubled(n=32, dtype=f32, *, stages=2):
    own = spatial(4, 8)

    @tc.kernel(workers=32)
    def kernel(a: dtype[n, n], c: tc.out[dtype[n, n]]):
        for row, col in tc.tiles((n, n), by=own.shape):
            acc = tc.tile(dtype, own, 0)
            for p in tc.pipeline(n, by=8, stages=stages):
                part = tc.load(a[row : row + 4, p : p + 8])
                for q in range(8):
                    for i, j in own:
                        acc[i, j] += part[i, q]
            tc.store(c[row : row + 4, col : col + 8], acc)

    return kernel


def sized(n):
    return doubled(n)


def example_that_fails(random):
    raise ValueError("no such data")


@tc.kernel(workers=4, example=example_that_fails)
def unlucky(x: tc.inout[f32[4]]):
    for i in spatial(4):
        x[i] = 1.0


number = 5
"""


RUNNING = """\
import taskc as tc
from taskc import f32, repeat, spatial


@tc.kernel(workers=4)
def bump(x: tc.inout[f32[4]]):
    for i in spatial(4):
        x[i] += 1.0


@tc.kernel(workers=32)
def exponential(x: f32[64], y: tc.out[f32[64]]):
    for i in spatial(32) * repeat(2):
        y[i] = tc.exp(x[i])
"""


PROGRAMS = """\
import taskc as tc
from taskc import f32, spatial


def make_twice(size, by=4):
    @tc.kernel(workers=4)
    def step(x: f32[size], y: tc.out[f32[size]]):
        s = tc.shared(f32[size])
        for i in spatial(4):
            s[i] = x[i]
        for i in spatial(by):
            y[i] = s[3 - i]

    @tc.program
    def twice(x: f32[size], y: tc.out[f32[size]]):
        t = tc.empty(f32[size])
        step(x, out=t)
        step(t, out=y)

    return twice


twice = make_twice(4)


def refused():
    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        twice(y, out=y)


def unlucky():
    @tc.program
    def program(x: f32[4]):
        [].pop()


def moved():
    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        t = twice(x)
        tc.compute((4,), lambda i: t[i] + 1, name="moved", out=y)

    return program
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "03_kernels.py").write_text(KERNELS)
    (folder / "running.py").write_text(RUNNING)
    (folder / "programs.py").write_text(PROGRAMS)
    (folder / "a_helper.py").write_text("WORKERS = 32\n")
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "broken.py").write_text("import taskc\n\ndef f(:\n    pass\n")
    (folder / "failing.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    (folder / "rejected.py").write_text(
        "import taskc as tc\n\n@tc.kernel(workers=4)\ndef f(x: tc.inout[tc.f32[4]]):\n    y = z\n"
    )
    return folder


@pytest.fixture(scope="module")
def model_file(folder: Path) -> None:
    """model.onnx: tokens -> Gather -> rows -> MatMul -> scores -> Softmax -> y"""
    import onnx

    from tests.onnx.models import model, node, tensor

    weights = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    made = model(
        [
            node("Gather", ["table", "tokens"], ["rows"], name="look up"),
            node("MatMul", ["rows", "w"], ["scores"], name="head"),
            node("Softmax", ["scores"], ["y"]),
        ],
        [tensor("tokens", "n", None, type=onnx.TensorProto.INT64)],
        ["y"],
        initializer=[
            onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32) + 1, "table"),
            onnx.numpy_helper.from_array(weights, "w"),
        ],
        value_info=[tensor("rows", "n", "t", 8)],
    )
    onnx.save(made, folder / "model.onnx")


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in ("NO_COLOR", "TASKC_TARGET", "TASKC_CACHE", "TASKC_DUMP"):
        monkeypatch.delenv(name, raising=False)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Ran:
        try:
            code = main(arguments)
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taskc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


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
