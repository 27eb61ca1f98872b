"""What the command line does with models: they are named by their files, and run on inputs that are made up."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.onnx.models import model, node, tensor

WEIGHTS = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def saved(folder: Path) -> None:
    """tokens -> Gather -> rows -> MatMul -> scores -> Softmax -> y, and a part of it that is a model."""
    rows = [node("Gather", ["table", "tokens"], ["rows"], name="look up")]
    scores = [
        node("MatMul", ["rows", "w"], ["scores"], name="head"),
        node("Softmax", ["scores"], ["y"]),
    ]
    made = model(
        [*rows, *scores],
        [tensor("tokens", "n", None, type=TensorProto.INT64)],
        ["y"],
        initializer=[
            numpy_helper.from_array(np.eye(8, dtype=np.float32) + 1, "table"),
            numpy_helper.from_array(WEIGHTS, "w"),
        ],
        value_info=[tensor("rows", "n", "t", 8)],
    )
    onnx.save(made, folder / "model.onnx")


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
        ("run 03_kernels.py:add --dim n=2", 2, "--dim and --input are of models"),
        ("compile model.onnx --inputs scores", 2, "doesn't say the type of its input 'scores'"),
        ("compile model.onnx --outputs score", 1, "did you mean 'scores'?"),
        ("compile model.onnx -o part.txt", 2, "-o names an ONNX model, and not 'part.txt'"),
        ("compile model.onnx -o none/part.onnx", 1, "No such file or directory"),
        ("bench model.onnx --against torch", 2, "PyTorch reads no ONNX models"),
        ("bench model.onnx --against all", 2, "there is no 'all' to compare with"),
    ],
)
def test_what_cannot_be_done_is_said(run: Any, arguments: str, code: int, message: str) -> None:
    ended = run(*arguments.split())
    assert ended.code == code
    assert message in ended.err


def test_compile_a_part_and_save_it(run: Any, folder: Path) -> None:
    arguments = ("--inputs", "rows", "--outputs", "scores", "--dim", "t=4", "-o", "part.onnx")
    ended = run("compile", "model.onnx", *arguments)
    assert (ended.code, ended.err) == (0, "")
    title, size, saved = ended.out.splitlines()
    assert title == "main: rows: f32[n, t, 8] -> scores: ?"
    assert re.fullmatch(r"1 call of 1 kernel, weights [\d.e-]+ MiB, arena 0 MiB; [\d.]+ s", size)
    assert saved == "saved as part.onnx"
    whole = json.loads(run("compile", "model.onnx", "--json").out)
    assert whole["calls"] > 1
    assert whole["weights"] >= (WEIGHTS.nbytes + 8 * 8 * 4)
    assert whole["arena"] > 0
    shape = json.loads(run("run", "part.onnx", "--dim", "t=4", "--json").out)["outputs"][0]["shape"]
    assert shape == [1, 4, 5]


def test_without_onnx_runtime(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for command in ("verify", "bench"):
        ended = run(command, "model.onnx")
        assert ended.code == 2
        assert "this compares with ONNX Runtime, which isn't installed" in ended.err


def test_verify(run: Any) -> None:
    pytest.importorskip("onnxruntime")
    ended = run("verify", "model.onnx", "--dim", "n=3", "--dim", "tokens:1=2")
    assert (ended.code, ended.err) == (0, "")
    output, verdict = ended.out.splitlines()
    assert re.fullmatch(r"y  off by \d\.\d\de-\d\d", output)
    assert verdict == "all within the tolerance of 0.001"


def test_verify_names_the_first_node_that_departs(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    from taskc.commands import onnx_runtime, verify

    class Wrong(onnx_runtime.Peer):
        """As if the MatMul were off here, and what is behind it too."""

        def run(self, feeds: Any) -> list[Any]:
            made = super().run(feeds)
            names = [item.name for item in self._session.get_outputs()]
            return [
                it * 1.01 if name in ("scores", "y") else it
                for name, it in zip(names, made, strict=True)
            ]

    monkeypatch.setattr(verify, "Peer", Wrong)
    ended = run("verify", "model.onnx", "--dim", "n=2")
    assert ended.code == 1
    assert "beyond the tolerance of 0.001" in ended.out
    assert (
        "the first node that departs: MatMul node 'head', whose output 'scores' is off" in ended.out
    )
    answer = json.loads(run("verify", "model.onnx", "--dim", "n=2", "--json").out)
    assert answer["agrees"] is False
    assert answer["first_departure"]["node"] == "MatMul node 'head'"


@pytest.mark.parametrize(
    ("made", "expected", "error"),
    [
        ([1.0, 3.0], [1.0, 2.0], 2.0),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([1.0, 1.0], [1.0], np.inf),
        ([4, 7], [4, 4], 3.0),
    ],
)
def test_the_error_of_an_output(made: list[Any], expected: list[Any], error: float) -> None:
    from taskc.commands.verify import error_of

    assert error_of(np.array(made), np.array(expected)) == error


def test_bench(run: Any) -> None:
    pytest.importorskip("onnxruntime")
    ended = run("bench", "model.onnx", "--budget", "0.01")
    assert (ended.code, ended.err) == (0, "")
    number = r"[\d.e-]+"
    assert re.fullmatch(
        rf"{number} ms, onnxruntime {number} ms: [\d.]+x "
        rf"\(quartiles [\d.]+ to [\d.]+, \d+ pairs, \d+ threads?\)\n",
        ended.out,
    )
    answer = json.loads(run("bench", "model.onnx", "--budget", "0.01", "--json").out)
    (peer,) = answer["peers"]
    assert peer["quartiles"][0] <= peer["ratio"] <= peer["quartiles"][1]
    assert peer["kept"] >= 15
