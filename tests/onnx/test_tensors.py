"""Every way in which a model may write a tensor's elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from taskc import CompileError
from taskc.onnx.reader import read

from .models import model

ARRAYS: dict[int, np.ndarray[Any, Any]] = {
    TensorProto.FLOAT: np.array([[0.5, -0.0, np.inf], [1e-40, -3, 7]], np.float32),
    TensorProto.DOUBLE: np.array([[0.1, -0.0, np.inf], [1e-310, -3, 7]], np.float64),
    TensorProto.FLOAT16: np.array([[0.5, -0.0, np.inf], [6e-8, -3, 7]], np.float16),
    TensorProto.BFLOAT16: np.array([[0.5, -0.0, np.inf], [1, -3, 7]], ml_dtypes.bfloat16),
    TensorProto.FLOAT8E4M3FN: np.array([[0.5, -0.0, 448], [1, -3, 7]], ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E5M2: np.array([[0.5, -0.0, np.inf], [1, -3, 7]], ml_dtypes.float8_e5m2),
    TensorProto.INT8: np.array([[-128, 127, 0], [1, -1, 5]], np.int8),
    TensorProto.INT16: np.array([[-(2**15), 2**15 - 1, 0], [1, -1, 5]], np.int16),
    TensorProto.INT32: np.array([[-(2**31), 2**31 - 1, 0], [1, -1, 5]], np.int32),
    TensorProto.INT64: np.array([[-(2**63), 2**63 - 1, 0], [1, -1, 5]], np.int64),
    TensorProto.UINT8: np.array([[255, 128, 0], [1, 2, 5]], np.uint8),
    TensorProto.UINT16: np.array([[2**16 - 1, 2**15, 0], [1, 2, 5]], np.uint16),
    TensorProto.UINT32: np.array([[2**32 - 1, 2**31, 0], [1, 2, 5]], np.uint32),
    TensorProto.UINT64: np.array([[2**64 - 1, 2**63, 0], [1, 2, 5]], np.uint64),
    TensorProto.BOOL: np.array([[True, False, False], [False, True, True]]),
    TensorProto.INT4: np.array([-8, 7, 0, -1, 1], ml_dtypes.int4),
    TensorProto.UINT4: np.array([15, 8, 0, 1, 2], ml_dtypes.uint4),
    TensorProto.INT2: np.array([-2, 1, 0, -1, 1], ml_dtypes.int2),
    TensorProto.UINT2: np.array([3, 2, 0, 1, 1], ml_dtypes.uint2),
}
FIELDS = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}
SMALL = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}


def stored(number: int) -> np.ndarray[Any, Any]:
    """The items that the standard stores an array's elements in: bytes of several, where these are smaller."""
    array = ARRAYS[number]
    if number not in SMALL:
        return array.reshape(-1)
    bits = SMALL[number]
    found = [0] * (-(-array.size * bits // 8))
    for at, value in enumerate(array.astype(int).tolist()):
        found[at * bits // 8] |= (value & ((1 << bits) - 1)) << (at * bits % 8)
    return np.array(found, np.uint8)


def proto(number: int) -> TensorProto:
    return TensorProto(name="w", data_type=number, dims=ARRAYS[number].shape)


def written_raw(number: int) -> TensorProto:
    tensor = proto(number)
    tensor.raw_data = stored(number).tobytes()
    return tensor


def written_in_a_field(number: int) -> TensorProto:
    tensor, items = proto(number), stored(number)
    if items.dtype.kind in "bfV" and items.dtype.itemsize <= 2:
        items = items.view(f"u{items.dtype.itemsize}")
    getattr(tensor, FIELDS.get(number, "int32_data")).extend(items.tolist())
    return tensor


def constant(tensor: TensorProto) -> np.ndarray[Any, Any]:
    return read(model([], [], ["w"], initializer=[tensor])).constants["w"]


@pytest.mark.each_value
@pytest.mark.parametrize("write", [written_raw, written_in_a_field])
@pytest.mark.parametrize("number", ARRAYS, ids=TensorProto.DataType.Name)
def test_an_initializer_is_the_array(number: int, write: Callable[[int], TensorProto]) -> None:
    found = constant(write(number))
    assert found.dtype == ARRAYS[number].dtype
    assert found.shape == ARRAYS[number].shape
    assert found.tobytes() == ARRAYS[number].tobytes()
    assert not found.flags.writeable


def test_any_byte_but_0_is_true() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x02\x00\xff")
    assert constant(tensor).tobytes() == b"\x01\x00\x01"


def test_empty_tensors_and_scalars() -> None:
    empty = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0, 3])
    assert constant(empty).shape == (0, 3)
    scalar = TensorProto(name="w", data_type=TensorProto.FLOAT, float_data=[2.0])
    assert constant(scalar).shape == ()
    assert constant(scalar) == 2.0


def test_attributes_and_constants_are_arrays_too() -> None:
    value = written_raw(TensorProto.BFLOAT16)
    node = helper.make_node("Constant", [], ["w"], value=value)
    assert np.array_equal(
        read(model([node], [], ["w"])).constants["w"], ARRAYS[TensorProto.BFLOAT16]
    )
    node = helper.make_node(
        "ConstantOfShape", ["n"], ["y"], value=TensorProto(data_type=1, dims=[1], float_data=[3.0])
    )
    shape = TensorProto(name="n", data_type=TensorProto.INT64, dims=[1], int64_data=[2])
    (found,) = read(model([node], [], ["y"], initializer=[shape])).nodes
    assert isinstance(found.attributes["value"], np.ndarray)
    assert found.attributes["value"].tolist() == [3.0]


def wrong(**fields: Any) -> TensorProto:
    return TensorProto(**{"name": "w", "data_type": TensorProto.FLOAT, "dims": [2], **fields})


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (wrong(raw_data=b"1234567"), "has 7 bytes, but its shape asks for 8"),
        (wrong(float_data=[1.0]), "has 1 elements, but its shape asks for 2"),
        (wrong(), "has 0 elements, but its shape asks for 2"),
        (
            wrong(dims=[2**40], raw_data=b"1234"),
            "has 4 bytes, but its shape asks for 4398046511104",
        ),
        (
            wrong(dims=[2**40, 2**40]),
            "has the shape [1099511627776, 1099511627776], which no memory holds",
        ),
        (wrong(dims=[0, 2**62]), "has the shape [0, 4611686018427387904], which no memory holds"),
        (wrong(dims=[2, -1]), "has the negative extent -1"),
        (wrong(dims=[1] * 33), "has 33 dimensions; the most is 32"),
        (
            wrong(float_data=[1, 2], raw_data=b"12345678"),
            "has its elements twice: in float_data and in raw_data",
        ),
        (
            wrong(int32_data=[1, 2]),
            "has its elements in int32_data; of its type they are in float_data",
        ),
        (
            wrong(data_type=TensorProto.INT8, int32_data=[1, 128]),
            "has the element 128, which is outside of its type",
        ),
        (
            wrong(data_type=TensorProto.FLOAT16, int32_data=[1, -1]),
            "has the element -1, which is outside of its type",
        ),
        (
            wrong(data_type=TensorProto.COMPLEX64, float_data=[1, 2]),
            "has elements of type COMPLEX64",
        ),
        (wrong(data_type=77), "has elements of type number 77"),
        (
            wrong(segment=TensorProto.Segment(begin=0, end=1)),
            "is a segment of a tensor, which taskc doesn't read",
        ),
    ],
)
def test_refused(tensor: TensorProto, message: str) -> None:
    with pytest.raises(CompileError) as error:
        constant(tensor)
    assert error.value.message == f"the initializer 'w' {message}"
