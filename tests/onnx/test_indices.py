"""Indices that are data: one that is outside of its extent is an error that names the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc.errors import CompileError

from .models import model, node, tensor

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ONES = np.ones((1, 2), np.float32)

# An operator, its attributes, indices that are inside and reach all ends, some that aren't, and what follows them.
CASES: dict[str, tuple[str, dict[str, Any], Any, list[Any], list[Any]]] = {
    "rows": ("Gather", {}, [0, 2, -3], [[0, 3, 0], [0, 1, -4], [2**40, 0, 0]], []),
    "columns": ("Gather", {"axis": 1}, [[0, -4], [3, -1]], [[[0, 0], [0, 4]]], []),
    "elements": (
        "GatherElements", {"axis": 0}, [[2, -3, 0, 1]], [[[0, 3, 0, 0]], [[0, 0, 0, -4]]], [],
    ),
    "places": ("GatherND", {}, [[2, -4], [-3, 3]], [[[0, 0], [3, 0]], [[0, -5], [0, 0]]], []),
    "rows by ND": ("GatherND", {"batch_dims": 0}, [[2], [-3]], [[[0], [3]]], []),
    "scattered": ("ScatterElements", {}, [[2, -3]], [[[0, 3]], [[-4, 0]]], [ONES]),
    "added": (
        "ScatterND",
        {"reduction": "add"},
        [[2, -4], [0, 3]],
        [[[0, 0], [3, 0]], [[0, 0], [0, -5]]],
        [ONES[0]],
    ),
}  # fmt: skip


def _model(case: str, indices: Any, known: bool) -> Any:
    operator, attributes, _, _, others = CASES[case]
    names = ["x", "i", *["u"] * len(others)]
    array = np.array(indices, np.int64)
    inputs = [tensor("x", 3, 4)]
    if not known:
        inputs.append(tensor("i", *array.shape, type=TensorProto.INT64))
    inputs += [tensor("u", *other.shape) for other in others]
    constants = [numpy_helper.from_array(array, "i")] if known else []
    nodes = [node(operator, names, ["y"], name="chooser", **attributes)]
    return model(nodes, inputs, ["y"], initializer=constants)


def _feeds(case: str, indices: Any, known: bool) -> dict[str, Any]:
    given = {"x": X} if known else {"x": X, "i": np.array(indices, np.int64)}
    return {**given, **dict.fromkeys(["u"] if CASES[case][4] else [], (*CASES[case][4], None)[0])}


@pytest.mark.parametrize("case", CASES)
def test_an_index_outside_is_an_error_that_names_the_node(case: str) -> None:
    _, _, inside, outside, _ = CASES[case]
    proto = _model(case, inside, False)
    found = tc.compile(proto)
    feeds = _feeds(case, inside, False)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_array_equal(found(feeds), wanted)
    for indices in outside:
        with pytest.raises(tc.CheckError, match=f"{CASES[case][0]} node 'chooser': "):
            found(_feeds(case, indices, False))
    np.testing.assert_array_equal(found(feeds), wanted)


@pytest.mark.parametrize("case", ["columns", "elements", "places"])
def test_known_indices_are_checked_before_anything_runs(case: str) -> None:
    operator, _, inside, outside, _ = CASES[case]
    proto = _model(case, inside, True)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": X})
    np.testing.assert_array_equal(tc.compile(proto)(X), wanted)
    with pytest.raises(CompileError, match=f"{operator} node 'chooser': there is no element"):
        tc.compile(_model(case, outside[0], True))(X)


def test_a_sequence_is_not_longer_than_its_axis() -> None:
    lengths = tensor("n", 4, type=TensorProto.INT64)
    nodes = [node("ReverseSequence", ["x", "n"], ["y"], name="turned", time_axis=0, batch_axis=1)]
    found = tc.compile(model(nodes, [tensor("x", 3, 4), lengths], ["y"]))
    turned = found(X, np.array([3, 2, 1, 0]))
    assert turned[:, 0].tolist() == [8, 4, 0]
    assert turned[:, 1].tolist() == [5, 1, 9]
    with pytest.raises(tc.CheckError, match="ReverseSequence node 'turned'"):
        found(X, np.array([3, 4, 1, 0]))
