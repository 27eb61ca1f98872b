"""Sequences, optional values and rare element types, which Python handles between programs."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import taskc as tc
from taskc import CompileError
from taskc.onnx import hosted
from taskc.operators.files import HOSTED

from .models import model, node, tensor

X = np.arange(12, dtype=np.float32).reshape(6, 2)
COUNT = tensor("n", type=TensorProto.INT64)
FLAG = tensor("flag", type=TensorProto.BOOL)


def constant(name: str, value: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def body(nodes: list[Any], inputs: list[Any], outputs: list[str]) -> Any:
    return helper.make_graph(
        nodes, "body", inputs, [helper.ValueInfoProto(name=one) for one in outputs]
    )


def sequence(name: str, type: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_sequence_value_info(name, type, None)


def optional(name: str) -> Any:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    return helper.make_value_info(name, kind)


def test_every_hosted_operator_has_a_function_or_graphs() -> None:
    for domain, operator in HOSTED:
        made = helper.make_node(operator, [], ["y"], domain=domain)
        one = tc.onnx.Node(made.op_type, (), ("y",), domain=domain)
        assert operator == "SequenceMap" or hosted.function_of(one) is not None, operator


def embedding_bag() -> ModelProto:
    """Rows are split, each part goes through programs, and the results are put together."""
    return model(
        [
            node("Mul", ["x", "two"], ["a"]),
            node("SplitToSequence", ["a", "sizes"], ["parts"]),
            node("SequenceLength", ["parts"], ["count"]),
            node("SequenceAt", ["parts", "last"], ["end"]),
            node("ReduceSum", ["end"], ["total"], keepdims=0),
            node("SequenceInsert", ["parts", "a", "zero"], ["more"]),
            node("ConcatFromSequence", ["more"], ["b"], axis=0),
            node("Neg", ["b"], ["y"]),
        ],
        [tensor("x", "rows", 2), tensor("sizes", "n", type=TensorProto.INT64)],
        ["y", "total", "count"],
        initializer=[
            constant("two", np.float32(2)),
            constant("last", np.int64(-1)),
            constant("zero", np.int64(0)),
        ],
    )


def test_programs_and_python_take_turns() -> None:
    compiled = tc.compile(embedding_bag())
    for sizes in ([1, 2, 3], [4, 2], [6]):
        y, total, count = compiled(X, np.array(sizes))
        np.testing.assert_array_equal(y, -2 * np.concatenate([X, X]))
        assert total == 2 * X[-sizes[-1] :].sum()
        assert count == len(sizes)
    names = [str(one.program.ir) for one in compiled.programs]
    assert all(any(word in name for name in names) for word in ("mul", "neg"))


def test_a_model_with_sequences_in_a_file(tmp_path: Any) -> None:
    path = tmp_path / "bag.onnx"
    path.write_bytes(embedding_bag().SerializeToString())
    for _ in range(2):
        y, _, _ = tc.compile(path)(X, np.array([6]))
        np.testing.assert_array_equal(y, -2 * np.concatenate([X, X]))


@pytest.mark.parametrize("position", [-3, -1, 0, 2, 3])
def test_insertion_and_erasure(position: int) -> None:
    given = [np.full(1, k, np.float32) for k in range(3)]
    for operator, inputs in (("SequenceInsert", ["s", "x", "at"]), ("SequenceErase", ["s", "at"])):
        compiled = tc.compile(
            model(
                [node(operator, inputs, ["t"])],
                [sequence("s"), tensor("x", 1), tensor("at", type=TensorProto.INT64)],
                ["t"],
            )
        )
        wanted = [*given]
        if operator == "SequenceInsert":
            wanted.insert(position, X[0, :1])
        elif position == 3:
            with pytest.raises(CompileError, match="its position 3 is outside of 3 elements"):
                compiled(given, X[0, :1], np.array(position))
            continue
        else:
            del wanted[position]
        made = compiled(given, X[0, :1], np.array(position))
        assert [one.tolist() for one in made] == [one.tolist() for one in wanted]


def test_a_loop_that_grows_a_sequence_as_often_as_data_says() -> None:
    step = body(
        [
            node("Add", ["acc", "x"], ["next"]),
            node("SequenceInsert", ["s", "next"], ["t"]),
            node("ReduceSum", ["next"], ["sum"], keepdims=0),
            node("Less", ["sum", "limit"], ["go"]),
        ],
        [COUNT, FLAG, sequence("s"), tensor("acc", 6, 2)],
        ["go", "t", "next"],
    )
    compiled = tc.compile(
        model(
            [
                node("SequenceEmpty", [], ["none"]),
                node("Loop", ["", "", "none", "x"], ["all", "end"], body=step),
                node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
            ],
            [tensor("x", 6, 2), tensor("limit")],
            ["y", "end"],
        )
    )
    for limit, turns in ((100.0, 1), (300.0, 4)):
        y, end = compiled(X, np.float32(limit))
        assert y.shape == (turns, 6, 2)
        np.testing.assert_array_equal(end, X * (turns + 1))


def test_a_sequence_is_mapped() -> None:
    compiled = tc.compile(
        model(
            [
                node(
                    "SequenceMap",
                    ["s", "bias"],
                    ["t"],
                    body=body([node("Add", ["one", "b"], ["sum"]), node("Mul", ["sum", "scale"], ["r"])],
                              [tensor("one", None), tensor("b", 1)], ["r"]),
                )
            ],
            [sequence("s"), tensor("bias", 1), tensor("scale", 1)],
            ["t"],
        )
    )  # fmt: skip
    given = [np.ones(k, np.float32) for k in (1, 4, 2)]
    made = compiled(given, np.float32([2]), np.float32([5]))
    assert [one.tolist() for one in made] == [[15.0] * k for k in (1, 4, 2)]


def test_optional_values_come_and_go() -> None:
    has = body([node("OptionalGetElement", ["o"], ["v"]), node("Neg", ["v"], ["r"])], [], ["r"])
    none = body([node("Identity", ["x"], ["q"])], [], ["q"])
    compiled = tc.compile(
        model(
            [
                node("OptionalHasElement", ["o"], ["has"]),
                node("If", ["has"], ["w"], then_branch=has, else_branch=none),
                node("Abs", ["w"], ["y"]),
            ],
            [optional("o"), tensor("x", 6, 2)],
            ["w", "y"],
        )
    )
    w, y = compiled(X[:1], X)
    assert w.tolist() == [[-0.0, -1.0]]
    assert y.tolist() == [[0.0, 1.0]]
    w, y = compiled(None, X)  # a tensor of another shape
    np.testing.assert_array_equal(w, X)
    np.testing.assert_array_equal(y, X)
    missing = tc.compile(model([node("OptionalGetElement", ["o"], ["v"])], [optional("o")], ["v"]))
    with pytest.raises(CompileError, match="its optional value has no element"):
        missing(None)


def test_unique_elements_go_on_into_a_program() -> None:
    compiled = tc.compile(
        model(
            [
                node("Unique", ["x"], ["u", "first", "", "counts"], sorted=0),
                node("Neg", ["u"], ["y"]),
            ],
            [tensor("x", "n")],
            ["y", "first", "counts"],
        )
    )
    for given in ([3, 1, 3, 2, 1, 3], [5, 5]):
        x = np.array(given, np.float32)
        y, first, counts = compiled(x)
        order = list(dict.fromkeys(given))
        assert y.tolist() == [-one for one in order]
        assert first.tolist() == [given.index(one) for one in order]
        assert counts.tolist() == [given.count(one) for one in order]


def test_integers_of_four_bits_go_in_and_come_out() -> None:
    packed = TensorProto(name="z", data_type=TensorProto.INT4, dims=[], raw_data=b"\x03")
    compiled = tc.compile(
        model(
            [
                node("DequantizeLinear", ["q", "scale"], ["f"]),
                node("Add", ["f", "f"], ["g"]),
                node("QuantizeLinear", ["g", "scale", "z"], ["y"]),
            ],
            [tensor("q", "n", type=TensorProto.INT4)],
            ["g", "y"],
            initializer=[constant("scale", np.float32(0.5)), packed],
        )
    )
    int4 = helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    q = np.array([-8, -3, 0, 1, 7]).astype(int4)
    g, y = compiled(q)
    assert g.tolist() == [-8.0, -3.0, 0.0, 1.0, 7.0]
    assert y.dtype == int4
    assert y.astype(int).tolist() == [-8, -3, 3, 5, 7]  # 2q + 3, clamped
    with pytest.raises(
        tc.ArgumentError, match=r"the input q: tensor\(int4\): it is of int4, not int8"
    ):
        compiled(np.ones(3, np.int8))


def test_arguments_of_other_kinds_are_refused() -> None:
    compiled = tc.compile(model([node("SequenceLength", ["s"], ["n"])], [sequence("s")], ["n"]))
    with pytest.raises(
        tc.ArgumentError, match=r"the input s: seq\(tensor\): it is a list, not ndarray"
    ):
        compiled(X)
    strings = tensor("t", "n", type=TensorProto.STRING)
    compiled = tc.compile(model([node("Identity", ["t"], ["u"])], [strings], ["u"]))
    with pytest.raises(tc.ArgumentError, match="it is an array of strings, not of float32"):
        compiled(X)


def test_a_node_without_a_way_for_strings_names_them() -> None:
    strings = tensor("t", "n", type=TensorProto.STRING)
    compiled = tc.compile(model([node("Neg", ["t"], ["u"], name="minus")], [strings], ["u"]))
    with pytest.raises(
        CompileError, match="Neg node 'minus': its input 't' is no tensor of numbers, but strings"
    ):
        compiled(np.array(["a"]))


def test_a_model_without_foreign_values_runs_as_one_program(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        compiled = tc.compile(model([node("Neg", ["x"], ["y"])], [tensor("x", 6, 2)], ["y"]))
        compiled(X)
    assert len(compiled.programs) == 1
    assert not caplog.records
