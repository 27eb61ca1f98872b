"""The recorder, in place of `tc.op`: what it records is the graph that runs. Needs no PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskc import f32, i64
from taskc.errors import NOWHERE, CompileError
from taskc.onnx.importer import import_graph
from taskc.operators.graph import Graph, Value
from taskc.torch.graph import Recorder, Tensor, place_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(recorder: Recorder, result: Tensor, *inputs: tuple[str, Any]) -> Any:
    declared = tuple([Value(name, f32) for name, _ in inputs])
    graph = Graph("g", declared, (result.name,), tuple(recorder.nodes), recorder.constants, {})
    types = {name: f32[array.shape] for name, array in inputs}
    return import_graph(graph, types).program(*[array for _, array in inputs])


def test_numbers_get_the_type_of_the_other_inputs() -> None:
    recorder = Recorder()
    y = recorder.Mul(recorder.Add(Tensor("x", f32, (2, 3)), 1), 2.5)
    assert [array.dtype for array in recorder.constants.values()] == [np.float32] * 2
    np.testing.assert_array_equal(run(recorder, y, ("x", X)), (X + 1) * 2.5)


def test_types_of_results() -> None:
    recorder = Recorder()
    x = Tensor("x", f32, (2, 3))
    assert recorder.Less(x, 1).dtype.name == "bool"
    assert recorder.Cast(x, to=7).dtype is i64
    assert [one.dtype for one in recorder.TopK(x, np.array([1]))] == [f32, i64]


class Symbol:
    """A symbol as sympy has them, and a sum or product of two."""

    is_Integer = False  # noqa: N815 (sympy's name)

    def __init__(self, kind: str = "Symbol", *args: Any) -> None:
        self.args = args
        self.__class__ = type(kind, (Symbol,), {})


class Number:
    is_Integer = True  # noqa: N815 (sympy's name)

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


def test_a_size_is_computed_from_the_shapes_of_inputs() -> None:
    recorder, s = Recorder(), Symbol()
    x = Tensor("x", f32, (2, 3))
    recorder.bind_shape(x, (2, SimpleNamespace(node=SimpleNamespace(expr=s))))
    doubled = SimpleNamespace(node=SimpleNamespace(expr=Symbol("Mul", s, Number(2))))
    y = recorder.Reshape(x, [doubled])
    np.testing.assert_array_equal(run(recorder, y, ("x", X)), X.reshape(6))


def test_a_size_that_no_operator_computes() -> None:
    with pytest.raises(CompileError, match="a size is"):
        Recorder().size(Symbol("Piecewise"))


def test_the_line_of_the_model() -> None:
    trace = '  File "a.py", line 3, in forward\n    y = f(x)\n  File "b.py", line 9, in f\n    return x\n'
    place = place_of(SimpleNamespace(meta={"stack_trace": trace}))
    assert (place.file, place.line, place.text) == ("b.py", 9, "return x")
    assert place_of(SimpleNamespace(meta={})) == NOWHERE
