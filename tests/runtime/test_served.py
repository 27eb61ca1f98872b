"""What runs arrays of some types is found once, and served from then on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import taskc as tc
from taskc.runtime import served
from taskc.runtime.served import Runnable, Served, ServedProgram
from tests.onnx.models import model, node, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Source:
    """A source of programs that take some of the inputs; it counts those that it was asked for."""

    def __init__(self, *inputs: str) -> None:
        self.inputs = inputs
        self.count = 0

    def find(self, arrays: Mapping[str, Any], *, is_traced: bool) -> Runnable | None:
        self.count += 1
        return Runnable(None, self.inputs, ()) if self.inputs else None


def _fast(arrays: Any) -> list[Any]:
    return [*arrays]


def _found(found: Served, *arrays: Any) -> ServedProgram:
    entry = found.find(dict(zip("xyz", arrays, strict=False)))
    assert entry is not None
    return entry


def test_types_and_shapes_decide() -> None:
    source = Source("x", "y")
    found = Served(source)
    entry = _found(found, X, X[0])
    assert found.fast([X, X[0]]) is None
    entry.fast = _fast
    assert found.fast([X + 1, X[1]]) is _fast
    assert found.fast((X, X[0])) is _fast
    others: list[list[Any]] = [
        [X], [X, X], [X.astype(np.float64), X[0]], [X.T, X[0]], [X, X[0].tolist()],
        [X, np.ma.masked_array(X[0], X[0] > 1)],
    ]  # fmt: skip
    for given in others:
        assert found.fast(given) is None
    assert _found(found, X + 1, X[1]) is entry
    assert source.count == 1
    assert _found(found, X, X) is not entry
    assert source.count == len(found.runnables) == 2


def test_elements_decide_where_a_program_does_not_take_them() -> None:
    source = Source("x")
    found = Served(source)
    entry = _found(found, X, X[0])
    entry.fast = _fast
    assert found.fast([X, X[0].copy()]) is _fast
    assert found.fast([X, X[1]]) is None
    assert _found(found, X, X[1]) is not entry
    assert _found(found, X, X[0]) is entry
    assert source.count == 2


def test_where_there_is_no_program_the_source_is_asked_again() -> None:
    source = Source()
    found = Served(source)
    assert found.find({"x": X}) is found.find({"x": X}) is None
    assert source.count == 2


def test_a_loaded_program_will_not_do_for_passes_and_traces() -> None:
    source = Source("x")
    found = Served(source)
    entry = _found(found, X)
    with tc.register_pass(lambda program: program, at="traced"):
        assert _found(found, X) is not entry
    assert found.find({"x": X}, is_traced=True) is not entry
    assert source.count == 3
    assert _found(found, X) is entry


def test_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_MAX_PROGRAMS", 3)
    found = Served(Source("x"))
    for size in range(10):
        entry = _found(found, np.zeros(size))
        assert _found(found, np.zeros(size)) is entry
        assert len(found.runnables) == len(found._entries) == min(size + 1, 3)


def test_a_program_serves_the_types_that_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept once, whatever the number of types, and beside it inputs that decide have the same elements."""
    program = Runnable(None, ("x",), (), serves=lambda types: types[0][1][0] % 2 == 0)
    source = Source("x", "y")
    monkeypatch.setattr(source, "find", lambda arrays, is_traced: program)
    found, y = Served(source), np.array([1])
    entry = _found(found, np.zeros(2), y)
    entry.fast = _fast
    for size in range(2, 20):
        is_served = size % 2 == 0
        for other in (y, y + 1, y.astype(np.int32), np.array([1, 1])):
            fast = found.fast([np.zeros(size), other])
            assert fast is (_fast if is_served and other is y else None)
    assert _found(found, np.zeros(4), y) is entry
    other = _found(found, np.zeros(4), y + 1)  # in its place, as it is the same program
    assert found.fast([np.zeros(2), y]) is None
    assert (found._open, found._entries, found.runnables) == ((other,), {}, (program,))


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
