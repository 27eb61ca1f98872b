"""taskc verify: errors of outputs, and the first node that departs."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from taskc.commands import verify
from taskc.onnx.model import Model
from taskc.onnx.partitions import RuntimeSession
from tests.onnx.models import model, node, tensor

pytestmark = pytest.mark.usefixtures("model_file")


def test_verify(run: Any) -> None:
    pytest.importorskip("onnxruntime")
    ended = run("verify", "model.onnx", "--dim", "n=3", "--dim", "tokens:1=2")
    assert (ended.code, ended.err) == (0, "")
    output, verdict = ended.out.splitlines()
    assert re.fullmatch(r"y  off by \d\.\d\de-\d\d", output)
    assert verdict == "all within the tolerance of 0.001"


def test_verify_says_what_less_precision_costs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "RuntimeSession", None)  # nobody else is asked
    ended = run("verify", "model.onnx", "--dim", "n=3", "--precision", "bf16", "--json")
    answer = json.loads(ended.out)
    assert (ended.code, answer["against"]) == (0, "f32")
    assert 1e-4 < answer["errors"]["y"] < 1e-1
    ended = run(
        "verify", "model.onnx", "--dim", "n=3", "--precision", "bf16", "--tolerance", "1e-6"
    )
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == "beyond the tolerance of 1e-06"


def test_verify_names_the_first_node_that_departs(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MatMul is off here, and what follows it too."""
    pytest.importorskip("onnxruntime")
    off_in(monkeypatch, Model, 1.01, "scores", "y")
    ended = run("verify", "model.onnx", "--dim", "n=2")
    assert ended.code == 1
    assert "beyond the tolerance of 0.001" in ended.out
    assert (
        "the first node that departs: MatMul node 'head', whose output 'scores' is off" in ended.out
    )
    answer = json.loads(run("verify", "model.onnx", "--dim", "n=2", "--json").out)
    assert answer["agrees"] is False
    assert answer["first_departure"]["node"] == "MatMul node 'head'"


def off_in(patch: pytest.MonkeyPatch, runner: type, factor: float, *names: str) -> None:
    """Make tensors of these names be off in the runs of a class."""
    run = runner.run

    def off(self: Any, first: Any, second: Any = None) -> list[Any]:
        outputs = self.outputs if runner is Model else self._session.get_outputs()
        results = run(self, first, second)
        return [
            result * factor if output.name in names else result
            for output, result in zip(outputs, results, strict=True)
        ]

    patch.setattr(runner, "run", off)


def test_the_nearer_to_float64_does_not_depart(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's Sigmoid, small as its values are, is off by more than they are."""
    pytest.importorskip("onnxruntime")
    nodes = [
        node("Sub", ["x", "c"], ["v"]),
        node("Sigmoid", ["v"], ["s"]),
        node("Mul", ["s", "c"], ["y"]),
    ]
    seventeen = numpy_helper.from_array(np.float32(17), "c")
    onnx.save(model(nodes, [tensor("x", 64, 64)], ["y"], initializer=[seventeen]), "small.onnx")
    assert run("verify", "small.onnx", "--json").code == 0
    ended = run("verify", "small.onnx")
    output, verdict = ended.out.splitlines()
    assert float(output.split()[-1]) > 1e-3
    assert verdict == (
        "beyond the tolerance of 0.001, and no node departs: each is as near to float64 as ONNX"
        " Runtime, or as rounding allows"
    )
    off_in(monkeypatch, Model, 3.0, "s")
    ended = run("verify", "small.onnx")
    assert ended.code == 1
    assert "the first node that departs: Sigmoid node that makes 's'" in ended.out


def test_a_node_of_an_older_version_is_judged(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package onnx evaluates a DequantizeLinear only from version 19 on: this one is of 13."""
    pytest.importorskip("onnxruntime")
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(0.1), "scale"),
        numpy_helper.from_array(np.int8(3), "zero"),
    ]
    graph = model(nodes, [tensor("x", 64, 64)], ["y"], initializer=constants, opset=13)
    onnx.save(graph, "bytes.onnx")
    with monkeypatch.context() as patch:
        off_in(patch, RuntimeSession, 1.01, "y")
        ended = run("verify", "bytes.onnx")
        assert ended.code == 0
        assert "no node departs" in ended.out
    off_in(monkeypatch, Model, 1.01, "y")
    ended = run("verify", "bytes.onnx")
    assert "the first node that departs: DequantizeLinear node that makes 'y'" in ended.out


@pytest.mark.parametrize(
    ("made", "expected", "error"),
    [
        ([1.0, 3.0], [1.0, 2.0], 2.0),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([1.0, 1.0], [1.0], np.inf),
        ([4, 7], [4, 4], 3.0),
        ([2e-9, 1e-9], [1e-9, 2e-9], 2.0),
        ([1 + 2**-20, 1.0], [1.0, 1.0], 1000 * 2**-20),
        ([1e-30], [0.0], np.inf),
    ],
)
def test_the_error_of_an_output(made: list[Any], expected: list[Any], error: float) -> None:
    assert verify.error_of(np.array(made), np.array(expected)) == error
