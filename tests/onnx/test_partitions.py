"""Models in parts: what taskc doesn't take is left to ONNX Runtime."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import taskc as tc
from taskc import CompileError
from taskc.arrays.arguments import ArgumentError
from taskc.ir.spans import recorded
from tests.onnx.models import model, node, tensor

pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
POINTS = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)


def kinds(found: Any) -> list[tuple[bool, list[str]]]:
    """Who runs each part, and its operators."""
    return [(part.is_left, [title.split()[0] for title in part.nodes]) for part in found.parts]


def distances(x: Any, y: Any) -> Any:
    """The squares of the distances of all rows: CDist, ONNX Runtime's own, which taskc doesn't have."""
    return ((x[:, None] - y) ** 2).sum(2)


def mixed() -> ModelProto:
    """What `shift` is made of is constant."""
    return model(
        [
            node("Relu", ["x"], ["a"]),
            node("CDist", ["a", "points"], ["b"], domain="com.microsoft"),
            node("Neg", ["points"], ["shift"]),
            node("MatMul", ["b", "shift"], ["c"]),
            node("CDist", ["x", "shift"], ["d"], domain="com.microsoft"),
            node("Mul", ["c", "d"], ["y"]),
            node("Sigmoid", ["x"], ["z"]),
        ],
        [tensor("x", "n", 4)],
        ["y", "z"],
        domains=("com.microsoft",),
        initializer=[numpy_helper.from_array(POINTS, "points")],
    )


def test_operators_of_others_run_elsewhere() -> None:
    found = tc.onnx.partition(mixed())
    assert kinds(found) == [
        (False, ["Relu", "Sigmoid"]),
        (True, ["CDist", "CDist"]),
        (False, ["MatMul", "Mul"]),
    ]
    y, z = found(X)
    expected = (distances(np.maximum(X, 0), POINTS) @ -POINTS) * distances(X, -POINTS)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(z, 1 / (1 + np.exp(-X)), atol=1e-6)
    np.testing.assert_array_equal(found.run(["z"], {"x": X})[0], z)
    assert "ONNX Runtime: a, x -> b, d: CDist 'b', CDist 'd'" in repr(found)


def test_parts_that_do_not_wait_for_each_other_are_one() -> None:
    chain = [node("Relu", ["x"], ["a0"])]
    for at in range(6):
        chain.append(node("Abs" if at % 2 else "Neg", [f"a{at}"], [f"a{at + 1}"]))
    proto = model(chain, [tensor("x", 4)], ["a6"])
    assert len(tc.onnx.partition(proto).parts) == 1
    found = tc.onnx.partition(proto, leave=["Abs"])
    assert kinds(found) == [
        (False, ["Relu", "Neg"]),
        (True, ["Abs"]),
        (False, ["Neg"]),
        (True, ["Abs"]),
        (False, ["Neg"]),
        (True, ["Abs"]),
    ]
    np.testing.assert_array_equal(found(X[0]), np.maximum(X[0], 0))


def test_strings_go_in_and_through() -> None:
    proto = model(
        [
            node("StringConcat", ["s", "mark"], ["t"]),
            node("Identity", ["t"], ["u"]),
            node(
                "LabelEncoder",
                ["u"],
                ["k"],
                domain="ai.onnx.ml",
                keys_strings=["a!", "b!"],
                values_floats=[1.5, 2.5],
                default_float=-1.0,
            ),
            node("Mul", ["k", "x"], ["y"]),
        ],
        [tensor("s", "n", type=TensorProto.STRING), tensor("x", "n")],
        [tensor("y", "n"), tensor("u", "n", type=TensorProto.STRING)],
        domains=("ai.onnx.ml",),
        initializer=[helper.make_tensor("mark", TensorProto.STRING, [], ["!"])],
    )
    proto.opset_import[-1].version = 4
    found = tc.onnx.partition(proto)
    assert kinds(found) == [(True, ["StringConcat", "Identity", "LabelEncoder"]), (False, ["Mul"])]
    y, u = found(np.array(["b", "c", "a"]), np.array([2, 3, 4], np.float32))
    np.testing.assert_array_equal(y, np.array([5, -3, 6], np.float32))
    assert list(u) == ["b!", "c!", "a!"]


def test_sequences_stay_where_they_are_made() -> None:
    proto = model(
        [
            node("Neg", ["x"], ["a"]),
            node("SequenceConstruct", ["a", "x"], ["s"]),
            node("ConcatFromSequence", ["s"], ["b"], axis=0),
            node("Abs", ["b"], ["y"]),
        ],
        [tensor("x", "n", 4)],
        ["y"],
    )
    found = tc.onnx.partition(proto)
    assert [part.is_left for part in found.parts] == [False, True, False]
    np.testing.assert_array_equal(found(X), np.abs(np.concatenate([X, X])))


def test_a_branch_with_what_is_not_taken_is_left_whole() -> None:
    inner = helper.make_graph(
        [node("CDist", ["x", "points"], ["g"], domain="com.microsoft")],
        "yes",
        [],
        [tensor("g", 3, 4)],
    )
    other = helper.make_graph([node("Relu", ["x"], ["r"])], "no", [], [tensor("r", 3, 4)])
    proto = model(
        [
            node("If", ["flag"], ["b"], then_branch=inner, else_branch=other),
            node("Neg", ["b"], ["y"]),
        ],
        [tensor("x", 3, 4), tensor("flag", type=TensorProto.BOOL)],
        ["y"],
        domains=("com.microsoft",),
        initializer=[numpy_helper.from_array(POINTS, "points")],
    )
    found = tc.onnx.partition(proto)
    assert kinds(found) == [(True, ["If"]), (False, ["Neg"])]
    np.testing.assert_allclose(found(X, np.array(True)), -distances(X, POINTS), atol=1e-5)
    np.testing.assert_array_equal(found(X, np.array(False)), -np.maximum(X, 0))


def test_outputs_that_are_inputs_or_constants() -> None:
    proto = model(
        [node("Relu", ["x"], ["y"]), node("Neg", ["w"], ["v"])],
        [tensor("x", 4)],
        ["x", "w", "v", "y"],
        initializer=[numpy_helper.from_array(X[1], "w")],
    )
    found = tc.onnx.partition(proto, leave=["Relu"])
    for made, expected in zip(found(X[0]), (X[0], X[1], -X[1], np.maximum(X[0], 0)), strict=True):
        np.testing.assert_array_equal(made, expected)


def test_what_is_drawn_is_drawn_once() -> None:
    """And not again by each part that reads it."""
    proto = model(
        [
            node("RandomNormal", [], ["r"], shape=[64]),
            node("Abs", ["r"], ["a"]),
            node("Sub", ["a", "r"], ["d"]),
            node("Mul", ["d", "r"], ["y"]),
        ],
        [],
        ["y"],
    )
    found = tc.onnx.partition(proto, leave=["Abs"])
    y = found()
    assert (y <= 0).all()
    assert (y < 0).any()
    assert (y == 0).any()


def counted_in_a_scan(before: list[NodeProto]) -> ModelProto:
    """A shape that data decides, in the body of a Scan over `v`."""
    body = helper.make_graph(
        [
            node("NonZero", ["v"], ["where"]),
            node("Shape", ["where"], ["extents"]),
            node("Gather", ["extents", "one"], ["count"]),
        ],
        "body",
        [tensor("part")],
        [tensor("count", type=TensorProto.INT64)],
    )
    scan = node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    weights = [numpy_helper.from_array(np.array(given), name) for name, given in NUMBERS.items()]
    return model([*before, scan], [tensor("x", 4)], ["y"], initializer=weights)


NUMBERS: dict[str, Any] = {"one": 1, "flat": [-1]}


def test_a_part_that_cannot_be_compiled_is_left(caplog: pytest.LogCaptureFixture) -> None:
    proto = counted_in_a_scan([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["v"])])
    with pytest.raises(CompileError):
        tc.compile(proto)(X[0])
    for leave, title in (([], "the whole model"), (["Relu"], "a part of the model")):
        found = tc.onnx.partition(proto, leave)
        assert kinds(found)[-1][0] is False
        caplog.clear()
        with caplog.at_level(logging.WARNING, "taskc"):
            first, again = found(X[0]), found(X[0])
        np.testing.assert_array_equal(first, [(X[0] > 0).sum()] * 4)
        np.testing.assert_array_equal(again, first)
        assert caplog.text.count(f"{title} is left to ONNX Runtime: error: Shape node") == 1
        assert all(is_left for is_left, _ in kinds(found))


def test_all_stages_are_traced_before_one_is_compiled() -> None:
    """Elements decide where the first stage ends; ONNX Runtime tells them, and the last stage can't be compiled."""
    stages = [
        node("Relu", ["x"], ["a"]),
        node("NonZero", ["a"], ["places"]),
        node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        node("Reshape", ["floats", "flat"], ["v"]),
    ]
    found = tc.onnx.partition(counted_in_a_scan(stages))
    with recorded() as spans:
        counts = found(X[0])
    nonzero = np.count_nonzero(np.flatnonzero(X[0] > 0))
    np.testing.assert_array_equal(counts, [nonzero] * 4)
    assert spans["trace"].count >= 2
    assert not spans.keys() & {"emission", "load code"}
    assert kinds(found)[0][0]


def test_a_model_of_unknown_operators_is_left_whole(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "taskc"):
        found = tc.onnx.partition(
            model([node("Relu", ["x"], ["y"])], [tensor("x", 4)], ["y"]), ["Relu"]
        )
    assert "the whole model is left to ONNX Runtime: taskc takes none of its nodes" in caplog.text
    assert kinds(found) == [(True, ["Relu"])]


def test_without_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(CompileError) as error:
        tc.onnx.partition(mixed())
    assert error.value.message == (
        "taskc doesn't take CDist 'b', CDist 'd', and ONNX Runtime isn't installed"
    )
    assert error.value.hint == "pip install onnxruntime"


def test_what_nobody_takes() -> None:
    proto = model(
        [node("Nothing", ["x"], ["y"], domain="own")], [tensor("x", 4)], ["y"], domains=("own",)
    )
    with pytest.raises(CompileError, match=r"ONNX Runtime doesn't take the model: .*Nothing"):
        tc.onnx.partition(proto)(X[0])


def test_circles() -> None:
    proto = model(
        [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"])], [tensor("x", 4)], ["b"]
    )
    with pytest.raises(CompileError, match="need what they make themselves"):
        tc.onnx.partition(proto)


def test_feeds_are_checked() -> None:
    found = tc.onnx.partition(mixed())
    with pytest.raises(ArgumentError, match="is of f32, not f64"):
        found(X.astype(np.float64))


def test_a_limit_is_no_reason_to_leave_a_part() -> None:
    proto = model(
        [node("Softmax", ["x"], ["a"]), node("MatMul", ["a", "x"], ["y"])],
        [tensor("x", 64, 64)],
        ["y"],
    )
    x = np.ones((64, 64), np.float32)
    with pytest.raises(CompileError, match="is limited to"):
        tc.onnx.partition(proto, memory=1000)(x)
    np.testing.assert_allclose(tc.onnx.partition(proto, memory=1 << 20, threads=1)(x), x, atol=1e-5)
