"""What runs arrays of some types is found once, and served from then on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import taskc as tc
from taskc.runtime import served
from taskc.runtime.served import Entry, Served
from tests.onnx.models import model, node, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_types_and_shapes_decide() -> None:
    found = Served()
    entry = Entry(lambda arrays: [arrays[0]])
    found.keep([X, X[0]], entry)
    assert found.entry([X + 1, X[1]]) is entry
    assert found.entry((X, X[0])) is entry
    others: list[list[Any]] = [
        [X], [X, X], [X.astype(np.float64), X[0]], [X.T, X[0]], [X, X[0].tolist()],
        [X, np.ma.masked_array(X[0], X[0] > 1)],
    ]  # fmt: skip
    for given in others:
        assert found.entry(given) is None


def test_elements_decide_where_an_entry_says_so() -> None:
    found = Served()
    entry = Entry(lambda arrays: [], ((1, X[0].tobytes()),))
    found.keep([X, X[0]], entry)
    assert found.entry([X, X[0].copy()]) is entry
    assert found.entry([X, X[1]]) is None


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_MOST", 3)
    found = Served()
    for size in range(10):
        found.keep([np.zeros(size)], Entry(lambda arrays: []))
        assert found.entry([np.zeros(size)]) is not None
        assert len(found._entries) <= 3


def _calls(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that are looked at from now on."""
    seen: list[Any] = []
    slow = type(compiled).checked

    def checked(self: Any, feeds: Any) -> Any:
        seen.append(feeds)
        return slow(self, feeds)

    monkeypatch.setattr(type(compiled), "checked", checked)
    return seen


def test_a_model_looks_at_the_first_call_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model([node("Add", ["x", "c"], ["y"])], [tensor("x", None, 3), tensor("c", 3)], ["y"])
    compiled = tc.compile(proto)
    seen = _calls(compiled, monkeypatch)
    for count in (1, 2, 5, 1, 2, 5):
        np.testing.assert_array_equal(
            compiled(np.ones((count, 3), np.float32), X[0]), [X[0] + 1] * count
        )
    assert len(seen) == 3
    np.testing.assert_array_equal(compiled.run(None, {"c": X[0], "x": X}), [X + X[0]])
    np.testing.assert_array_equal(compiled({"c": X[0], "x": -X}), X[0] - X)
    assert len(seen) == 3
    with pytest.raises(tc.ArgumentError, match="is of f32, not f64"):
        compiled(X.astype(np.float64), X[0])
    with pytest.raises(tc.ArgumentError, match="has 3 along axis 0, and the array 2"):
        compiled(X, X[0, :2])
    with tc.register_pass(lambda program: program, at="traced"):
        np.testing.assert_array_equal(compiled(X, X[0]), X + X[0])
    assert len(seen) == 6


def test_a_shape_that_is_an_input_is_compared() -> None:
    proto = model(
        [node("Reshape", ["x", "shape"], ["y"])],
        [tensor("x", 6), tensor("shape", 2, type=TensorProto.INT64)],
        ["y"],
    )
    compiled, flat = tc.compile(proto), X.reshape(-1)
    for _ in range(2):
        for shape in ((2, 3), (3, 2), (1, 6)):
            assert compiled(flat, np.array(shape)).shape == shape


def test_outputs_that_are_known_or_several_are_the_callers_own() -> None:
    proto = model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Neg", ["x"], ["y"]),
            node("NonZero", ["x"], ["at"]),
        ],
        [tensor("x", 2, 3)],
        ["shape", "y", "at"],
    )
    compiled = tc.compile(proto)
    for _ in range(3):
        shape, y, at = compiled(X)
        assert shape.tolist() == [2, 3]
        np.testing.assert_array_equal(y, -X)
        np.testing.assert_array_equal(at, np.nonzero(X))
        shape[:], y[:] = 0, 0
