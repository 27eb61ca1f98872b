"""A model's tensors as arrays.

Nothing is allocated by what a tensor claims to be: its elements are counted against the bytes that are there first.
"""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from taskc.errors import Location
from taskc.ir.types import DTYPES, DType
from taskc.onnx.external import Folder
from taskc.onnx.protobuf import TensorProto, text
from taskc.onnx.written import Part
from taskc.operators.graph import Array

COMPUTED: dict[int, str] = {
    TensorProto.FLOAT: "f32",
    TensorProto.DOUBLE: "f64",
    TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.INT8: "i8",
    TensorProto.INT16: "i16",
    TensorProto.INT32: "i32",
    TensorProto.INT64: "i64",
    TensorProto.UINT8: "u8",
    TensorProto.UINT16: "u16",
    TensorProto.UINT32: "u32",
    TensorProto.UINT64: "u64",
    TensorProto.BOOL: "bool",
    TensorProto.FLOAT8E4M3FN: "f8e4m3",
    TensorProto.FLOAT8E5M2: "f8e5m2",
}
# Constants may have these too; no tensor that is computed does.
_PACKED: dict[int, tuple[int, np.dtype[Any]]] = {
    TensorProto.INT4: (4, np.dtype(ml_dtypes.int4)),
    TensorProto.UINT4: (4, np.dtype(ml_dtypes.uint4)),
    TensorProto.INT2: (2, np.dtype(ml_dtypes.int2)),
    TensorProto.UINT2: (2, np.dtype(ml_dtypes.uint2)),
}
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_FIELD_OF: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}  # of all others "int32_data"
_MAXIMUM_RANK = 32  # of NumPy 1
_ADDRESSABLE = 2**62

_SUPPORTED = f"taskc computes with {', '.join(COMPUTED.values())}"


def dtype_of(number: int) -> DType | None:
    """The element type that a model gives by its number in TensorProto, if taskc has it."""
    return DTYPES[COMPUTED[number]] if number in COMPUTED else None


def element_type(number: int, part: Part) -> DType:
    """The same of a part of the model that needs to have one."""
    dtype = dtype_of(number)
    if dtype is None:
        raise part.error(f"has elements of type {_type_name(number)}", _SUPPORTED)
    return dtype


def check_extents(shape: tuple[int, ...], part: Part) -> None:
    """Refuse a shape that no array can have."""
    if len(shape) > _MAXIMUM_RANK:
        raise part.error(f"has {len(shape)} dimensions; the most is {_MAXIMUM_RANK}")
    if any(extent < 0 for extent in shape):
        raise part.error(f"has the negative extent {min(shape)}")
    if prod(max(extent, 1) for extent in shape) * 8 >= _ADDRESSABLE:
        raise part.error(f"has the shape {list(shape)}, which no memory holds")


def array_of(tensor: TensorProto, part: Part, folder: Folder) -> Array:
    """The array, which can't be written to. A tensor of 4-bit or 2-bit integers gives one of ml_dtypes' types."""
    data, count, stored = _data(tensor, part, folder)
    if tensor.data_type in _PACKED:
        array = _unpacked(np.frombuffer(data, stored), count, *_PACKED[tensor.data_type])
    elif tensor.data_type == TensorProto.BOOL:
        array = np.frombuffer(data, np.uint8) != 0  # NumPy trusts that what is true is 1
    else:
        array = np.frombuffer(data, stored.newbyteorder("<")).astype(stored, copy=False)
    array = array.reshape(tuple(tensor.dims))
    array.flags.writeable = False
    return array


def take_in(tensor: TensorProto, where: Location, folder: Folder) -> None:
    """Bring a tensor's elements into the model from the file that they are in, if they are in one."""
    if tensor.data_location == TensorProto.EXTERNAL:
        part = Part(f"the tensor '{text(tensor.name)}'", where)
        tensor.raw_data = _data(tensor, part, folder)[0]
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _data(tensor: TensorProto, part: Part, folder: Folder) -> tuple[bytes, int, np.dtype[Any]]:
    """A tensor's bytes, little-endian, the number of its elements, and the type of what they are stored in."""
    shape = tuple(tensor.dims)
    check_extents(shape, part)
    if tensor.HasField("segment"):
        raise part.error("is a segment of a tensor, which taskc doesn't read")
    count = stores = prod(shape)
    if tensor.data_type in _PACKED:
        bits, _ = _PACKED[tensor.data_type]
        stored = np.dtype(np.uint8)
        stores = (count * bits + 7) // 8
    else:
        stored = element_type(tensor.data_type, part).numpy
    nbytes = stores * stored.itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        entries = {text(entry.key): text(entry.value) for entry in tensor.external_data}
        return folder.read(entries, nbytes, part), count, stored
    return _inside(tensor, stores, stored, part), count, stored


def _inside(tensor: TensorProto, count: int, stored: np.dtype[Any], part: Part) -> bytes:
    """The `count` items of type `stored` that a tensor has in one of its fields."""
    raw: bytes = tensor.raw_data
    filled = [name for name in _FIELDS if len(getattr(tensor, name))] + ["raw_data"] * bool(raw)
    if len(filled) > 1:
        raise part.error(f"has its elements twice: in {' and in '.join(filled)}")
    if raw:
        nbytes = count * stored.itemsize
        if len(raw) != nbytes:
            raise part.error(f"has {len(raw)} bytes, but its shape asks for {nbytes}")
        return raw
    field = _FIELD_OF.get(tensor.data_type, "int32_data")
    if filled not in ([], [field]):
        raise part.error(f"has its elements in {filled[0]}; of its type they are in {field}")
    items = getattr(tensor, field)
    if len(items) != count:
        raise part.error(f"has {len(items)} elements, but its shape asks for {count}")
    return _typed(items, stored, part)


def _typed(items: Any, stored: np.dtype[Any], part: Part) -> bytes:
    """A typed field's items as bytes. Floats of 16 and 8 bits are written as integers that have their bits."""
    if stored in (np.float32, np.float64):
        return np.array(items, stored.newbyteorder("<")).tobytes()
    bits = stored if stored.kind in "iu" else np.dtype(f"u{stored.itemsize}")
    limits = np.iinfo(bits)
    outside = next((item for item in items if not limits.min <= item <= limits.max), None)
    if outside is not None:
        raise part.error(f"has the element {outside}, which is outside of its type")
    return np.array(items, bits.newbyteorder("<")).tobytes()


def _unpacked(data: Array, count: int, bits: int, dtype: np.dtype[Any]) -> Array:
    """Integers of less than 8 bits, of which a byte has the first in its lowest bits."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    values = ((data[:, None] >> places) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.int8)
    if dtype.name.startswith("int"):
        values = np.where(values >= 1 << (bits - 1), values - (1 << bits), values)
    return values.astype(dtype)


def _type_name(number: int) -> str:
    if number == TensorProto.STRING:
        return "string"
    names: dict[int, str] = {value: name for name, value in TensorProto.DataType.items()}
    return names.get(number, f"number {number}")
