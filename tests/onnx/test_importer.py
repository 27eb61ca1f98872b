"""What becomes of a graph: what is known while its program is traced, and what that program computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc
from taskc import TensorType, f32
from taskc.onnx.importer import Imported, import_graph, is_known
from taskc.onnx.reader import read

from .models import model, node, tensor


def _imported(proto: Any, **inputs: TensorType) -> Imported:
    return import_graph(read(proto, is_known), inputs)


def _integers(**arrays: Any) -> list[Any]:
    return [numpy_helper.from_array(np.array(value), name) for name, value in arrays.items()]


def _halves() -> Any:
    """A vector of even length as two rows, by shape arithmetic."""
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Div", ["n", "two"], ["half"]),
            node("Unsqueeze", ["half", "first"], ["h"]),
            node("Concat", ["twos", "h"], ["shape"], axis=0),
            node("Reshape", ["x", "shape"], ["y"]),
        ],
        [tensor("x", "n")],
        ["y", "shape"],
        initializer=_integers(zero=0, two=2, first=[0], twos=[2]),
    )


def test_shape_arithmetic_is_known() -> None:
    found = _imported(_halves(), x=f32[6])
    name, shape = found.outputs
    assert isinstance(name, str)
    assert not isinstance(shape, str)
    assert shape.tolist() == [2, 3]
    assert found.program(np.arange(6, dtype=np.float32)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_sizes_of_a_call_go_through_shape_arithmetic() -> None:
    doubled = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Mul", ["n", "three"], ["m"]),
            node("Reshape", ["m", "one"], ["shape"]),
            node("Reshape", ["x", "shape"], ["y"]),
        ],
        [tensor("x", "n", 3)],
        ["y"],
        initializer=_integers(zero=0, three=3, one=[1]),
    )
    found = _imported(doubled, x=f32[tc.dim("n"), 3])
    for rows in (2, 5):
        x = np.arange(rows * 3, dtype=np.float32)
        assert found.program(x.reshape(rows, 3)).tolist() == x.tolist()


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    proto = model(
        [
            node("Exp", ["c"], ["e"]),
            node("Transpose", ["e"], ["t"]),
            node("Add", ["x", "t"], ["y"]),
        ],
        [tensor("x", 3, 2)],
        ["y", "t"],
        initializer=[numpy_helper.from_array(np.float32([[0, 1, 2], [3, 4, 5]]), "c")],
    )
    found = _imported(proto, x=f32[3, 2])
    assert len(found.program.ir.calls) == 1
    expected = np.exp(np.float32([[0, 3], [1, 4], [2, 5]]))
    np.testing.assert_allclose(found.outputs[1], expected, rtol=1e-6)
    made = found.program(np.ones((3, 2), np.float32))
    np.testing.assert_allclose(made, 1 + expected, rtol=1e-6)


def test_nodes_that_no_output_needs_are_not_built() -> None:
    proto = model(
        [node("NonZero", ["x"], ["places"]), node("Neg", ["x"], ["y"])], [tensor("x", 3)], ["y"]
    )
    assert len(_imported(proto, x=f32[3]).program.ir.calls) == 1


def test_a_condition_that_is_known_chooses_a_branch() -> None:
    ends = [helper.make_empty_tensor_value_info("r")]
    then = helper.make_graph([node("Neg", ["x"], ["r"])], "then", [], ends)
    other = helper.make_graph([node("NonZero", ["x"], ["r"])], "other", [], ends)
    proto = model(
        [
            node("Size", ["x"], ["n"]),
            node("Equal", ["n", "three"], ["is_three"]),
            node("If", ["is_three"], ["y"], then_branch=then, else_branch=other),
        ],
        [tensor("x", None)],
        ["y"],
        initializer=_integers(three=3),
    )
    assert _imported(proto, x=f32[3]).program(np.float32([1, 2, 3])).tolist() == [-1, -2, -3]
    with pytest.raises(tc.CompileError, match="If node that makes 'y': how many elements 'r' has"):
        _imported(proto, x=f32[4])


def test_a_shape_that_is_data_is_refused() -> None:
    proto = model(
        [node("Reshape", ["x", "shape"], ["y"], name="odd")],
        [tensor("x", 6), tensor("shape", 1, type=TensorProto.INT64)],
        ["y"],
    )
    with pytest.raises(tc.CompileError) as caught:
        _imported(proto, x=f32[6], shape=tc.i64[1])
    assert "Reshape node 'odd': its input 1, 'shape', is known only when" in str(caught.value)


def test_a_node_that_does_not_fit_its_inputs_is_named() -> None:
    proto = model([node("DepthToSpace", ["x"], ["y"], blocksize=2)], [tensor("x", 4, 2)], ["y"])
    with pytest.raises(tc.CompileError) as caught:
        _imported(proto, x=f32[4, 2])
    message = "DepthToSpace node that makes 'y': its input 0 is f32[4, 2], and has to be of 4 dim"
    assert message in str(caught.value)
