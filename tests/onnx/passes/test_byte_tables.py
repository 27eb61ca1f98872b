"""What lies between bytes and bytes becomes a table, with the operators' own numbers, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.onnx.passes.byte_tables import byte_tables
from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor
from tests.onnx.passes.recognition import is_left_alone, operators

CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.05), "t": np.float32(1 / 256), "r": np.array([0.03], np.float32),
    "two": np.float32(2), "row": np.ones((1, 1), np.float32), "many": np.full(5, 0.05, np.float32),
}  # fmt: skip
BYTES = np.arange(260).astype(np.uint8)[:255].reshape(3, 17, 5)


def dequantized(name: str, to: str, scale: str = "s", zero: str = "p") -> NodeProto:
    return node("DequantizeLinear", [name, scale, zero], [to])


def quantized(name: str, to: str, scale: str = "s", zero: str = "p") -> NodeProto:
    return node("QuantizeLinear", [name, scale, zero], [to])


def silu() -> list[NodeProto]:
    return [
        dequantized("i", "a"),
        node("Sigmoid", ["a"], ["b"]),
        quantized("b", "c", "t"),
        dequantized("c", "d", "t"),
        node("Mul", ["a", "d"], ["e"]),
        quantized("e", "y", "r"),
    ]


def of(nodes: list[NodeProto], zero: Any, given: str = "i") -> Any:
    kind = 2 if zero.dtype == np.uint8 else 3
    twenty = zero.dtype.type(20)
    arrays = {**CONSTANTS, "p": zero, "twenty": twenty, "line": np.full((1, 1), twenty)}
    return model(
        nodes, [tensor(given, 3, 17, 5, type=kind)], ["y"],
        initializer=[numpy_helper.from_array(np.asarray(it), name) for name, it in arrays.items()],
    )  # fmt: skip


@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(131), np.int8(-7)], ids=str)
@pytest.mark.parametrize(
    "nodes",
    [
        silu(),
        [dequantized("i", "a"), node("Tanh", ["a"], ["b"]), quantized("b", "y")],
        [
            dequantized("i", "a"),
            node("Mul", ["two", "a"], ["b"]),
            node("Erf", ["b"], ["c"]),
            node("Add", ["c", "a"], ["d"]),
            quantized("d", "y", "r"),
        ],
        [
            dequantized("i", "a"),
            dequantized("twenty", "k"),
            node("Div", ["a", "k"], ["b"]),
            quantized("b", "c"),
            dequantized("c", "d"),
            node("Erf", ["d"], ["e"]),
            node("Mul", ["a", "e"], ["f"]),
            quantized("f", "y", "r"),
        ],
    ],
    ids=["silu", "tanh", "of a constant", "of a dequantized constant"],
)
def test_a_table_has_the_operators_numbers(nodes: list[NodeProto], zero: Any) -> None:
    made, x = of(nodes, zero), BYTES.view(zero.dtype)
    found = operators(made)
    assert found[-1] == "taskc.Table"
    (y,), (expected,) = (
        compile(made).run(None, {"i": x}),
        ReferenceEvaluator(made).run(None, {"i": x}),
    )
    assert len(np.unique(expected)) > 5
    np.testing.assert_array_equal(y, expected)


def pair(first: str, second: str) -> list[NodeProto]:
    return [
        node("Sigmoid", [first], ["u"]),
        node("Mul", ["u", second], ["e"]),
        quantized("e", "y"),
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        [dequantized("i", "a"), node("Relu", ["a"], ["b"]), quantized("b", "y")],
        [dequantized("i", "a"), dequantized("j", "b"), *pair("a", "b")],
        [node("Cast", ["i"], ["a"], to=1), *pair("a", "a")],
        [dequantized("i", "a", "many"), *pair("a", "a")],
        [dequantized("i", "a"), *pair("a", "row")],
        [dequantized("i", "a"), dequantized("line", "b"), *pair("a", "b")],
        [dequantized("twenty", "a"), *pair("a", "a")],
        [dequantized("i", "a"), node("Softmax", ["a"], ["b"]), *pair("b", "a")],
    ],
    ids=[
        "a Relu",
        "two",
        "a cast",
        "a scale for each",
        "another rank",
        "another rank of bytes",
        "of numbers alone",
        "of a row",
    ],
)
def test_lookalikes_stay_as_they_are(nodes: list[NodeProto]) -> None:
    made = of(nodes, np.uint8(3))
    made.graph.input.append(tensor("j", 3, 17, 5, type=2))
    assert is_left_alone(made, byte_tables)
