"""Ifs whose branches give tensors of different ranks: as ONNX Runtime runs them, or refused in a sentence."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import taskc as tc
from taskc import CompileError
from tests.onnx.models import model, node, tensor
from tests.onnx.random_branches import B, F, branches_of, constant, graph


def outcome(number: int) -> str:
    """What becomes of a random model: "same", "refused: …", or "invalid" where ONNX Runtime has no result either."""
    random = Random(number)
    made = branches_of(random).SerializeToString()
    values = np.random.default_rng(number).standard_normal((2, 4)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        peer = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    except Exception:
        return "invalid"
    said = "same"
    for x in (values, -values, values + 3):
        try:
            (expected,) = peer.run(None, {"x": x})
        except Exception:
            return "invalid"
        try:
            (found,) = tc.compile(made).run(None, {"x": x})
        except CompileError as error:
            said = f"refused: {error.message}"
            continue
        assert found.shape == expected.shape, (number, found.shape, expected.shape)
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-5), number
    return said


@pytest.mark.parametrize("number", range(8))
def test_random_branches(number: int) -> None:
    outcome(number)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_many_random_branches(first: int) -> None:
    said = [outcome(number) for number in range(first, first + 100)]
    assert said.count("same") > 25


def in_a_loop(*readers: Any) -> ModelProto:
    """A Loop of two turns whose If makes `d`, bool[] or bool[1], for these readers, which make `w`."""
    then = graph("t", [node("Greater", ["s", "zero"], ["t_o"])], [], [("t_o", B)])
    otherwise = graph(
        "e",
        [constant("one", np.float32([1])), node("Less", ["s", "one"], ["e_o"])],
        [],
        [("e_o", B)],
    )
    body = helper.make_graph(
        [
            node("ReduceSum", ["v"], ["s"], keepdims=0), constant("zero", np.float32(0)),
            node("Greater", ["s", "zero"], ["c"]),
            node("If", ["c"], ["d"], then_branch=then, else_branch=otherwise), *readers,
            node("Identity", ["d"], ["go"]),
        ],
        "body", [tensor("i", type=TensorProto.INT64), tensor("g", type=B), tensor("v", 2, 4)],
        [tensor("go", type=B), tensor("w", 2, 4)],
    )  # fmt: skip
    nodes = [
        constant("turns", np.int64(2)), constant("yes", np.array(True)),
        node("Loop", ["turns", "yes", "x"], ["y"], body=body),
    ]  # fmt: skip
    return model(nodes, [tensor("x", 2, 4)], ["y"])


BLIND = (
    [node("Where", ["d", "v", "s"], ["w"])],
    [node("Not", ["d"], ["n"]), node("Where", ["n", "v", "s"], ["w0"]), node("Add", ["w0", "s"], ["w"])],
    [node("Cast", ["d"], ["f"], to=F), node("Mul", ["v", "f"], ["w"])],
    [constant("all", np.array([-1])), node("Reshape", ["d", "all"], ["r"]), node("Where", ["r", "v", "s"], ["w"])],
    [node("If", ["d"], ["w"], then_branch=graph("a", [node("Identity", ["v"], ["a_o"])], [], [("a_o", F)]),
          else_branch=graph("b", [node("Neg", ["v"], ["b_o"])], [], [("b_o", F)]))],
)  # fmt: skip


@pytest.mark.parametrize("readers", BLIND)
def test_readers_that_do_not_tell_ranks_apart(readers: list[Any]) -> None:
    made = in_a_loop(*readers)
    compiled = tc.compile(made)
    peer = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for x in (np.ones((2, 4), np.float32), np.full((2, 4), -1, np.float32)):
        assert np.array_equal(compiled(x), peer.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    "reader",
    [
        node("Shape", ["d"], ["n"]),
        node("Unsqueeze", ["d", "axis"], ["n"]),
        node("Concat", ["d"], ["n"], axis=0),
    ],
)
def test_readers_that_do_are_refused(reader: Any) -> None:
    uses = [
        node("Cast", ["n"], ["f"], to=F),
        node("ReduceSum", ["f"], ["r"], keepdims=0),
        node("Add", ["v", "r"], ["w"]),
    ]
    compiled = tc.compile(in_a_loop(constant("axis", np.array([0])), reader, *uses))
    with pytest.raises(
        CompileError,
        match=r"'d' is bool\[\] or bool\[1\], and which one is known only when it runs",
    ):
        compiled(np.ones((2, 4), np.float32))
