"""taskc explain: which nodes each kernel took in, and the bytes that it moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper, save

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


def test_rewrites_are_named_with_what_they_found(run: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Transpose", ["x"], ["k"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["s", "k"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"]),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 4, 8]) for name in "xy")
    path = tmp_path / "attention.onnx"
    save(helper.make_model(helper.make_graph(nodes, "main", [x], [y]), ir_version=10), path)
    _, rewrite, *_ = run("explain", str(path)).out.splitlines()
    assert rewrite == "recognize_attention: 1 taskc.Attention for 2 MatMul, 1 Softmax, 1 Transpose"
    (found,) = json.loads(run("explain", str(path), "--json").out)["rewrites"]
    assert found["made"] == {"taskc.Attention": 1}


def test_a_page_has_both_graphs(run: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ended = run(*ARGUMENTS, "--html", str(page))
    assert (ended.code, ended.err) == (0, "")
    text = page.read_text(encoding="utf-8")
    calls, nodes = [part.split("</section>")[0] for part in text.split("The graph of ")[1:]]
    assert nodes.count("<rect") == 3  # Gather, MatMul, Softmax: one behind the other
    assert nodes.count("<path") == 2
    assert "head" in nodes
    assert calls.count("<rect") == len(json.loads(run(*ARGUMENTS, "--json").out)["calls"])
    assert calls.count("<path") >= 1
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # it asks for nothing else


def test_a_page_that_cannot_be_written(run: Any, tmp_path: Path) -> None:
    ended = run(*ARGUMENTS, "--html", str(tmp_path / "none" / "page.html"))
    assert ended.code != 0
    assert "page.html can't be written" in ended.err


def test_the_segments_of_a_script(run: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import taskc.numpy as np\nx = np.ones(9000)\nfor _ in range(3):\n    float((x * 2 + x).sum())\n"
    )
    ended = run("explain", str(script))
    assert ended.code == 0
    assert (
        "3 times 3 operations, 1 results, ended by float: script.py:4: float((x * 2 + x).sum())"
        in ended.out
    )
    segments = json.loads(run("explain", str(script), "--json").out)["segments"]
    assert segments[-1]["ended_by"] == "float"
    assert run("explain", "no.py").code == 2
