"""taskc explain: which nodes each kernel took in, and the bytes that it moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("model_file")

ARGUMENTS = ("explain", "model.onnx", "--dim", "n=3", "--dim", "tokens:1=2")


def test_each_call_with_its_nodes(run: Any) -> None:
    ended = run(*ARGUMENTS)
    assert (ended.code, ended.err) == (0, "")
    before, after, *calls, moved = ended.out.splitlines()
    assert before == "before: 3 nodes: 1 Gather, 1 MatMul, 1 Softmax"
    assert after.startswith(f"after: {len(calls)} calls, of ")
    assert any("matmul" in line and "MatMul node 'head'" in line for line in calls)
    assert moved.startswith("moved: ")


def test_nodes_and_bytes_as_json(run: Any) -> None:
    answer = json.loads(run(*ARGUMENTS, "--json").out)
    taken = [title for call in answer["calls"] for title in call["nodes"]]
    assert {*taken} == {
        "Gather node 'look up'",
        "MatMul node 'head'",
        "Softmax node that makes 'y'",
    }
    moved = answer["bytes"]
    assert moved["after"] == sum(call["moved"] for call in answer["calls"])
    # Six tokens of 8 bytes and 30 floats, and the weights: 64 floats of the table, and 8 x 5 that may be padded.
    assert moved["least"] >= 6 * 8 + 4 * (30 + 64 + 40)
    assert moved["least"] <= moved["after"] <= moved["before"]
