"""Ifs whose branches give tensors of different ranks, or otherwise unlike: as ONNX Runtime runs them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import taskc as tc
from taskc import CompileError
from taskc.onnx.partitions import Partition
from taskc.operators.control import UNLIKE_STEPS
from tests.onnx.models import model, node, tensor
from tests.onnx.random_branches import B, F, branches_of, constant, graph


def _compiled(made: bytes) -> Any:
    try:
        return tc.compile(made)
    except CompileError as error:
        if "operators that taskc doesn't know" in error.message or "type proto" in error.message:
            return tc.onnx.partition(made)
        raise


def outcome(number: int) -> str:
    """The fate of a random model: "same", "in parts" where ONNX Runtime has one, "invalid" where it has no result."""
    model = branches_of(Random(number))
    size = [extent.dim_value for extent in model.graph.input[0].type.tensor_type.shape.dim]
    # Eighths, so that sums of 800 of them are exact: the next turn multiplies what they are off by.
    values = (np.random.default_rng(number).standard_normal(size) * 8).round().astype(
        np.float32
    ) / 8
    made = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        peer = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    except Exception:
        return "invalid"
    compiled: Any = None
    for x in (values, -values):
        try:
            (expected,) = peer.run(None, {"x": x})
        except Exception:
            return "invalid"
        try:
            compiled = compiled or _compiled(made)
            (found,) = compiled.run(None, {"x": x})
        except CompileError as error:
            if UNLIKE_STEPS in error.message:  # ONNX Runtime stacks what has as many elements
                return "unlike steps"
            raise
        assert found.shape == expected.shape, (number, found.shape, expected.shape)
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-5), number
    return "in parts" if isinstance(compiled, Partition) else "same"


@pytest.mark.parametrize("number", range(8))
def test_random_branches(number: int) -> None:
    outcome(number)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_many_random_branches(first: int) -> None:
    said = [outcome(number) for number in range(first, first + 100)]
    assert said.count("same") > 40


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


# These tell ranks apart: the Loop's body is called for each turn.
SEEING = (
    [node("Shape", ["d"], ["n"])],
    [constant("axis", np.array([0])), node("Unsqueeze", ["d", "axis"], ["n"])],
    [node("Shape", ["d"], ["k"]), node("Size", ["k"], ["n"])],
)
_SUMS = [
    node("Cast", ["n"], ["f"], to=F),
    node("ReduceSum", ["f"], ["r"], keepdims=0),
    node("Add", ["v", "r"], ["w"]),
]


@pytest.mark.parametrize("readers", [*BLIND, *([*reader, *_SUMS] for reader in SEEING)])
def test_readers_of_what_may_have_another_rank(readers: list[Any]) -> None:
    made = in_a_loop(*readers)
    compiled = tc.compile(made)
    peer = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for x in (np.ones((2, 4), np.float32), np.full((2, 4), -1, np.float32)):
        assert np.array_equal(compiled(x), peer.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("readers", "is_one"), [*((it, True) for it in BLIND), (SEEING[0] + _SUMS, False)]
)
def test_a_loop_is_one_program_where_readers_do_not_tell(readers: list[Any], is_one: bool) -> None:
    compiled = tc.compile(in_a_loop(*readers))
    compiled(np.ones((2, 4), np.float32))
    assert (len(compiled.programs) == 1) == is_one
