"""Users' own rewrites of graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taskc import CompileError
from taskc.onnx import Graph, register_pass
from taskc.onnx.passes import pipeline
from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor


@pytest.fixture(autouse=True)
def _own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_registered", [])


def test_a_users_pass_rewrites_models() -> None:
    made = model([node("Abs", ["x"], ["y"])], [tensor("x", 3)], ["y"])
    x = np.array([-1, 2, -3], np.float32)

    @register_pass
    def negated(graph: Graph) -> Graph:
        nodes = [replace(it, operator="Neg") if it.operator == "Abs" else it for it in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    compiled = compile(made)
    np.testing.assert_array_equal(compiled(x), -x)
    assert [it.operator for it in compiled.graph.nodes] == ["Abs"]


def test_a_pass_keeps_inputs_and_outputs() -> None:
    made = model([node("Abs", ["x"], ["y"])], [tensor("x", 3)], ["y"])

    @register_pass
    def shortened(graph: Graph) -> Graph:
        return replace(graph, nodes=(), outputs=("x",))

    with pytest.raises(
        CompileError, match="the pass 'shortened' changes what 'main' takes or makes"
    ):
        compile(made)
