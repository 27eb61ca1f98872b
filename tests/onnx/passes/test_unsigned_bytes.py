"""Signed bytes that only DequantizeLinear reads become unsigned, with the same results to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.onnx.importer import is_known
from taskc.onnx.passes.unsigned_bytes import unsigned_bytes
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor

# A scale that is a power of two: no product is rounded.
SCALE = np.float32(0.25)


def network(zero: Any, outputs: list[str], *more: Any, axis: int | None = None) -> Any:
    count = 1 if axis is None else 6
    scale = np.full(count, SCALE) if axis is not None else SCALE
    settings = {} if axis is None else {"axis": axis}
    nodes = [
        node("QuantizeLinear", ["x", "s", "p"], ["i"], **settings),
        node("DequantizeLinear", ["i", "s", "p"], ["y"], **settings),
        *more,
    ]
    constants = {"s": scale, "p": np.asarray(zero)}
    listed = [numpy_helper.from_array(np.asarray(it), name) for name, it in constants.items()]
    return model(nodes, [tensor("x", 3, 6)], outputs, initializer=listed)


def is_unsigned(made: Any) -> bool:
    graph = unsigned_bytes(read(made, is_known))
    first = next(item for item in graph.nodes if item.operator == "QuantizeLinear")
    return bool(graph.constants[first.inputs[2]].dtype == np.uint8)


@pytest.mark.parametrize("zero", [-128, -1, 0, 127])
@pytest.mark.parametrize("axis", [None, 1])
def test_results_are_the_same(zero: int, axis: int | None) -> None:
    given = np.full(6, zero, np.int8) if axis is not None else np.int8(zero)
    made = network(given, ["y"], axis=axis)
    assert is_unsigned(made)
    x = np.linspace(-80, 80, 18, dtype=np.float32).reshape(3, 6)
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    (found,) = compile(made).run(None, {"x": x})
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 5


def test_others_stay_signed() -> None:
    assert not is_unsigned(network(np.int8(3), ["y", "i"]))
    assert not is_unsigned(network(np.int16(3), ["y"]))
    cast = node("Cast", ["i"], ["z"], to=TensorProto.INT32)
    assert not is_unsigned(network(np.int8(3), ["y", "z"], cast))
