"""What the command line does with models: they are named by their files, and run on inputs that are made up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda.conftest import compiled, fake, start

__all__ = ["compiled", "fake", "start"]  # fixtures
pytestmark = pytest.mark.usefixtures("model_file")


def test_run_a_model_by_the_end_of_its_name(run: Any) -> None:
    ended = run("run", "model.onnx", "--dim", "n=3", "--dim", "tokens:1=2", "--repeat", "4")
    assert (ended.code, ended.err) == (0, "")
    output, took, compiled = ended.out.splitlines()
    assert re.fullmatch(r"y: f32\[3, 2, 5\], digest [0-9a-f]{12}", output)
    assert re.fullmatch(r"[\d.e-]+ ms, the median of 4 calls \(cpu, \d+ threads?\)", took)
    assert re.fullmatch(r"read and compiled in [\d.e-]+ s", compiled)
    again = json.loads(
        run("run", "model.onnx", "--dim", "n=3", "--dim", "tokens:1=2", "--json").out
    )
    assert again["outputs"][0]["digest"] in output
    assert json.loads(run("run", "model.onnx", "--json").out)["outputs"][0]["shape"] == [1, 1, 5]


@pytest.mark.usefixtures("compiled")
def test_run_and_verify_a_model_on_a_device(run: Any) -> None:
    ended = run("run", "model.onnx", "--dim", "n=3", "--target", "cuda", "--repeat", "2")
    assert (ended.code, ended.err) == (0, "")
    output, took, _ = ended.out.splitlines()
    assert re.fullmatch(r"y: f32\[3, 1, 5\], digest [0-9a-f]{12}", output)
    assert re.fullmatch(r"[\d.e-]+ ms, the median of 2 calls \(cuda, 1 thread\)", took)
    ended = run("verify", "model.onnx", "--dim", "n=3", "--target", "cuda")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "all within the tolerance of 0.001"


def test_inputs_from_files(run: Any, folder: Path) -> None:
    np.save(folder / "tokens.npy", np.array([[7, 3]]))
    np.savez(folder / "several.npz", a=1, b=2)
    (folder / "torn.npy").write_bytes(b"\x93NUMPY")
    first = json.loads(run("run", "model.onnx", "--input", "tokens=tokens.npy", "--json").out)
    assert first["outputs"][0]["shape"] == [1, 2, 5]
    np.save(folder / "tokens.npy", np.array([[3, 7]]))
    second = json.loads(run("run", "model.onnx", "--input", "tokens=tokens.npy", "--json").out)
    assert first["outputs"][0]["digest"] != second["outputs"][0]["digest"]
    for file, message in (
        ("several.npz", "several.npz has several arrays; an input is one"),
        ("torn.npy", "torn.npy can't be read as an array"),
        ("none.npy", "none.npy can't be read as an array"),
    ):
        ended = run("run", "model.onnx", "--input", f"tokens={file}")
        assert (ended.code, message in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("run none.onnx", 1, "the model can't be read: No such file or directory"),
        ("run model.onnx --dim m=2", 2, "no open extent 'm'; it has 'n', 'tokens:0', 'tokens:1'"),
        ("run model.onnx --input x=x.npy", 2, "the model has no input 'x'; it has 'tokens'"),
        ("run model.onnx --dim n", 2, "'n' is not NAME=N, such as batch=8"),
        ("run model.onnx --dim n=99999999999", 2, "is too large to make up"),
        ("run model.onnx --check", 2, "taskc verify compares them"),
        ("run model.onnx --target sim", 2, "models don't run in the simulator"),
        ("run model.onnx --target cuda", 1, "error: there is no NVIDIA driver on this machine"),
        ("run model.taskc --target cuda", 2, "model.taskc is compiled for a processor"),
        ("run 03_kernels.py:add --dim n=2", 2, "--dim, --input and --precision are of models"),
        ("compile model.onnx --inputs scores", 2, "doesn't say the type of its input 'scores'"),
        ("compile model.onnx --outputs score", 1, "did you mean 'scores'?"),
        ("compile model.onnx -o part.txt", 2, "or an ONNX model, and not 'part.txt'"),
        ("compile model.onnx -o none/part.onnx", 1, "No such file or directory"),
        ("bench model.onnx --against torch", 2, "PyTorch reads no ONNX models"),
        ("bench model.onnx --against all", 2, "there is no 'all' to compare with"),
    ],
)
def test_what_cannot_be_done_is_said(run: Any, arguments: str, code: int, message: str) -> None:
    ended = run(*arguments.split())
    assert ended.code == code
    assert message in ended.err
