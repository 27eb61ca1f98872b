"""What Python makes of known integers is what kernels make of the same ones at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc

from .models import model, node, tensor

_A = np.array([[7, -7, 0], [3, -1, 5]])
_B = np.array([[2, -2, 3], [-2, 1, -5]])
_C = np.array([1, -3, 2])

# An operator, the inputs that are data once, those that are always known, and its attributes.
CASES: list[tuple[str, list[Any], list[Any], dict[str, Any]]] = [
    ("Add", [_A, _C], [], {}),
    ("Sub", [_A, _C], [], {}),
    ("Mul", [_A, _B], [], {}),
    ("Div", [_A, _B], [], {}),
    ("Mod", [_A, _B], [], {}),
    ("Mod", [_A, _B], [], {"fmod": 1}),
    ("Pow", [_A, np.array(3)], [], {}),
    ("Pow", [_A], [np.array(2)], {}),
    ("Max", [_A, _B, _C], [], {}),
    ("Min", [_A, _C], [], {}),
    ("Clip", [_A, np.array(-2), np.array(4)], [], {}),
    ("Neg", [_A], [], {}),
    ("Abs", [_A], [], {}),
    ("Sign", [_A], [], {}),
    ("Equal", [_A, np.array(3)], [], {}),
    ("Less", [_A, _C], [], {}),
    ("GreaterOrEqual", [_A, _C], [], {}),
    ("Not", [_A > 0], [], {}),
    ("Xor", [_A > 0, _B > 0], [], {}),
    ("And", [_A > 0, _B > 0], [], {}),
    ("BitwiseXor", [_A, _B], [], {}),
    ("Where", [_C > 0, _A, _B], [], {}),
    ("Cast", [_A], [], {"to": TensorProto.INT32}),
    ("Cast", [_A * 100], [], {"to": TensorProto.UINT8}),
    ("Cast", [_A], [], {"to": TensorProto.BOOL}),
    ("Gather", [_A, np.array([[0, -1], [1, 1]])], [], {"axis": 1}),
    ("Gather", [_A], [np.array(-1)], {"axis": 0}),
    ("Concat", [_A, np.ascontiguousarray(_A[:, :1]), _B], [], {"axis": 1}),
    ("Slice", [_A], [np.array([-1]), np.array([-9]), np.array([1]), np.array([-2])], {}),
    ("Transpose", [_A], [], {}),
    ("Tile", [_C], [np.array([2])], {}),
    ("Expand", [_C], [np.array([2, 1])], {}),
    ("Reshape", [_A], [np.array([-1, 2])], {}),
    ("Unsqueeze", [_A], [np.array([0, -1])], {}),
    ("Split", [_A], [np.array([1, 2])], {"axis": 1}),
    ("Trilu", [_A], [], {"upper": 0}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_known_and_computed_are_equal(case: tuple[str, list[Any], list[Any], Any]) -> None:
    operator, data, known, attributes = case
    names = [f"i{number}" for number in range(len(data) + len(known))]
    made = ["y", "z"] if operator == "Split" else ["y"]
    arrays = [
        numpy_helper.from_array(array, name)
        for array, name in zip([*data, *known], names, strict=True)
    ]
    inputs = [
        tensor(name, *array.shape, type=helper.np_dtype_to_tensor_dtype(array.dtype))
        for array, name in zip(data, names, strict=False)
    ]
    nodes = [node(operator, names, made, **attributes)]
    at_run_time = tc.compile(model(nodes, inputs, made, initializer=arrays[len(data) :]))
    wanted = at_run_time.run(None, dict(zip(names, data, strict=False)))
    ahead = tc.compile(model(nodes, [], made, initializer=arrays))
    for one, other in zip(ahead.run(None, {}), wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
