"""Numbers are quantized before they are moved, and not again after; results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.onnx.passes.move_bytes import move_bytes
from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor
from tests.onnx.passes.recognition import is_left_alone, operators

CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.05), "t": np.float32(0.03), "many": np.full(5, 0.05, np.float32),
    "flat": np.array([51, 5]), "from": np.array([1]), "to": np.array([3]), "axis": np.array([1]),
    "p": np.uint8(131), "zeros": np.full(5, 131, np.uint8), "large": np.float32(1e38),
}  # fmt: skip
BYTES = np.arange(255, dtype=np.uint8).reshape(3, 17, 5)


def dequantized(name: str, to: str, scale: str = "s", zero: str = "p") -> NodeProto:
    return node("DequantizeLinear", [name, scale, zero], [to])


def quantized(name: str, to: str, scale: str = "s", zero: str = "p") -> NodeProto:
    return node("QuantizeLinear", [name, scale, zero], [to])


def of(nodes: list[NodeProto]) -> Any:
    arrays = {name: numpy_helper.from_array(np.asarray(it), name) for name, it in CONSTANTS.items()}
    return model(nodes, [tensor("x", 3, 17, 5, type=2)], ["y"], initializer=[*arrays.values()])


RESHAPED = node("Reshape", ["b", "flat"], ["c"])
TURNED = node("Transpose", ["c"], ["d"], perm=[1, 0])
SLICED = node("Slice", ["a", "from", "to", "axis"], ["b"])


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            [dequantized("x", "a"), node("Gelu", ["a"], ["b"]), RESHAPED, TURNED, quantized("d", "y", "t")],
            ["taskc.Table", "Reshape", "Transpose"],
        ),
        ([dequantized("x", "a"), SLICED, quantized("b", "y")], ["Slice"]),
        (
            [dequantized("x", "b"), RESHAPED, quantized("c", "e"), dequantized("e", "f"),
             node("Gelu", ["f"], ["g"]), quantized("g", "y", "t")],
            ["Reshape", "taskc.Table"],
        ),
    ],
    ids=["after an operator", "a part", "before an operator"],
)  # fmt: skip
def test_bytes_are_moved(nodes: list[NodeProto], expected: list[str]) -> None:
    made = of(nodes)
    found = [
        name
        for name in operators(made)
        if name not in ("DequantizeLinear", "QuantizeLinear", "Gelu")
    ]
    assert sorted(found) == sorted(expected)
    (y,), (wanted,) = (
        compile(made).run(None, {"x": BYTES}),
        ReferenceEvaluator(made).run(None, {"x": BYTES}),
    )
    assert len(np.unique(wanted)) > 5
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    "nodes",
    [
        [dequantized("x", "a"), SLICED, quantized("b", "y", "t")],
        [dequantized("x", "b"), node("Exp", ["b"], ["c"]), quantized("c", "y")],
        [dequantized("x", "b"), RESHAPED, quantized("c", "y", "many", "zeros")],
        [dequantized("x", "b", "large"), RESHAPED, quantized("c", "y", "large")],
        [dequantized("x", "b"), quantized("b", "y")],
    ],
    ids=["a part by another scale", "no move", "scales by column", "overflow", "nothing between"],
)
def test_others_stay_as_they_are(nodes: list[NodeProto]) -> None:
    assert is_left_alone(of(nodes), move_bytes)
