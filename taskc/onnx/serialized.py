"""A model as written: names and attributes unresolved, functions not inlined, nodes unsorted.

`reader.py` parses these from a protobuf, and `resolve.py` makes a graph of operators of them.

Only this module imports the package onnx: others take its protobuf classes and tables of operators from here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir.types import DTYPES, DType
from taskc.onnx.foreign import RARE
from taskc.operators.graph import Array, Node, Value

try:
    from onnx import (
        IR_VERSION,
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TensorShapeProto,
        TypeProto,
        ValueInfoProto,
        defs,
        shape_inference,
    )
except ImportError as error:
    raise CompileError(
        "reading an ONNX model needs the Python package onnx",
        hint="pip install 'taskc-compiler[onnx]'",
    ) from error

__all__ = [
    "IR_VERSION",
    "AttributeProto",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "TensorProto",
    "TensorShapeProto",
    "TypeProto",
    "ValueInfoProto",
    "defs",
    "infer_types",
    "text",
]


def text(value: str | bytes) -> str:
    """A string of a protobuf, which the package returns as bytes where it isn't UTF-8."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def infer_types(model: ModelProto) -> list[ValueInfoProto]:
    """The types that ONNX's own inference finds; none where it fails."""
    try:
        return [*shape_inference.infer_shapes(model).graph.value_info]
    except Exception:  # its exceptions have no class in common
        return []


Key: TypeAlias = "tuple[str, str, str]"  # a function's domain, name and overload


@dataclass(frozen=True, slots=True)
class Subject:
    """A part of a model by its title in messages, such as "the initializer 'w'", and the model's file."""

    title: str
    where: Location

    def error(self, message: str, hint: str | None = None) -> CompileError:
        return CompileError(f"{self.title} {message}", self.where, hint)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference from a function's body to the attribute of this name of the calling node."""

    name: str


@dataclass(frozen=True, slots=True)
class WrittenAttribute:
    """An attribute as written; `type` is its number in AttributeProto."""

    type: int
    value: object  # an int, float, str, bytes, array, WrittenGraph, a list of one of these, or a Reference


@dataclass(frozen=True, slots=True, eq=False)
class WrittenNode:
    """A node with its attributes, kept apart. `overload` chooses between functions of one name."""

    node: Node
    attributes: dict[str, WrittenAttribute]
    overload: str

    @property
    def graphs(self) -> Iterator[WrittenGraph]:
        for attribute in self.attributes.values():
            value = attribute.value
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, WrittenGraph):
                    yield item

    @property
    def reads(self) -> set[str]:
        """Its inputs, and the names that its graphs capture."""
        return {*self.node.inputs}.union(*(graph.captured for graph in self.graphs)) - {""}


@dataclass(frozen=True, slots=True, eq=False)
class WrittenGraph:
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[WrittenNode, ...]
    constants: dict[str, Array]
    values: dict[str, Value]

    @property
    def names(self) -> Iterator[str]:
        """The names that it defines."""
        yield from (value.name for value in self.inputs)
        yield from self.constants
        for written in self.nodes:
            yield from filter(None, written.node.outputs)

    @property
    def captured(self) -> set[str]:
        """The names of the enclosing graphs that it uses."""
        return {*self.outputs}.union(*(node.reads for node in self.nodes)) - {*self.names}


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function that defines a node, from the model or from ONNX. `defaults` are for attributes that a call omits."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[WrittenNode, ...]
    defaults: dict[str, WrittenAttribute]


# --- External data: read only from below the model's folder --------------------------------------


class Folder:
    """The folder of a model's external data; a model given as bytes has none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # The byte ranges of each file that tensors use. Tensors may share a range, and other ranges may not overlap, so
        # that a small file can't fill the memory.
        self._read: dict[Path, dict[tuple[int, int], bytes]] = {}

    def read(self, entries: dict[str, str], nbytes: int, subject: Subject) -> bytes:
        """The bytes that a tensor's entries name, checked against its shape."""
        file = self._file(entries.get("location", ""), subject)
        offset = _number(entries, "offset", 0, subject)
        length = _number(entries, "length", nbytes, subject)
        if length != nbytes:
            raise subject.error(f"has {length} bytes, but its shape asks for {nbytes}")
        known = self._read.setdefault(file, {})
        if (offset, length) not in known:
            taken = length + sum(map(len, known.values()))
            known[offset, length] = _bytes(file, offset, length, taken, subject)
        return known[offset, length]

    def _file(self, location: str, subject: Subject) -> Path:
        if self.path is None:
            message = f"is in the file '{location}', and a model given as bytes has no folder"
            raise subject.error(message, "give the model by its path")
        outside = subject.error(f"is in '{location}', which isn't below the model's folder")
        if not location or "\0" in location or Path(location).is_absolute():
            raise outside
        file = Path(os.path.realpath(self.path / location))
        if not file.is_relative_to(os.path.realpath(self.path)):
            raise outside
        return file


def _bytes(file: Path, offset: int, length: int, taken: int, subject: Subject) -> bytes:
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise subject.error(f"is in '{file}', which is no regular file")
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if offset + length > size:
                raise subject.error(f"ends at byte {offset + length} of '{file}', which has {size}")
            if taken > size:
                raise subject.error(f"lies over a part of another tensor in '{file}'")
            opened.seek(offset)
            content = opened.read(length)
    except OSError as error:
        raise subject.error(f"is in '{file}': {error.strerror}") from None
    if len(content) != length:
        raise subject.error(f"is in '{file}', which became shorter while it was read")
    return content


def _number(entries: dict[str, str], key: str, default: int, subject: Subject) -> int:
    written = entries.get(key, str(default))
    if not (written.isascii() and written.isdigit() and len(written) < 20):
        raise subject.error(f"has the {key} '{written}' in its external data")
    return int(written)


# --- A model's tensors as arrays ----------------------------------------------------------------
# A tensor's declared shape is checked against the bytes that are present before anything is allocated.


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
# Only the host has tensors of these types; programs have constants of some.
_FOREIGN: dict[int, np.dtype[Any]] = {
    TensorProto.STRING: np.dtype(object),
    **{TensorProto.DataType.Value(name.upper()): dtype for name, dtype in RARE.items()},
}
_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}  # of packed elements
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_FIELD_OF: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}  # of all others "int32_data"
_MAXIMUM_RANK = 32  # NumPy 1's limit
_ADDRESSABLE = 2**62

_SUPPORTED = f"taskc computes with {', '.join(COMPUTED.values())}"


def dtype_of(number: int) -> DType | None:
    """The element type of a number in TensorProto, or None if taskc doesn't have it."""
    return DTYPES[COMPUTED[number]] if number in COMPUTED else None


def element_type(number: int, subject: Subject) -> DType:
    """The element type of a number in TensorProto; an error if taskc doesn't have it."""
    dtype = dtype_of(number)
    if dtype is None:
        raise subject.error(f"has elements of type {_type_name(number)}", _SUPPORTED)
    return dtype


def numpy_type(number: int) -> np.dtype[Any] | None:
    """The NumPy type of a number in TensorProto, or None if taskc has no such tensors, not even on the host."""
    dtype = dtype_of(number)
    return _FOREIGN.get(number) if dtype is None else dtype.numpy


def foreign_type(proto: TypeProto, subject: Subject) -> str:
    """ONNX's name of a type that isn't a tensor's of programs; "" for one that is, or that isn't declared."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            number = proto.tensor_type.elem_type
            if not number or dtype_of(number) is not None:
                return ""
            if number not in _FOREIGN:
                element_type(number, subject)
            return f"tensor({_type_name(number).lower()})"
        case "sequence_type":
            return f"seq({_inner_type(proto.sequence_type.elem_type, subject)})"
        case "optional_type":
            return f"optional({_inner_type(proto.optional_type.elem_type, subject)})"
        case "map_type":
            return "map"
        case None:
            return ""
    what = proto.WhichOneof("value").removesuffix("_type").replace("_", " ")
    raise subject.error(f"is of type {what}, which taskc doesn't have")


def _inner_type(proto: TypeProto, subject: Subject) -> str:
    return foreign_type(proto, subject) or "tensor"


def check_extents(shape: tuple[int, ...], subject: Subject) -> None:
    """Refuse a shape that no array can have."""
    if len(shape) > _MAXIMUM_RANK:
        raise subject.error(f"has {len(shape)} dimensions; the most is {_MAXIMUM_RANK}")
    if any(extent < 0 for extent in shape):
        raise subject.error(f"has the negative extent {min(shape)}")
    if prod(max(extent, 1) for extent in shape) * 8 >= _ADDRESSABLE:
        raise subject.error(f"has the shape {list(shape)}, which no memory holds")


def array_of(
    tensor: TensorProto, subject: Subject, folder: Folder, raw: bytes | None = None
) -> Array:
    """A read-only array. A tensor of 4-bit or 2-bit integers gives one of ml_dtypes' types.

    raw  the tensor's raw data, where it was taken out of the protobuf
    """
    if tensor.data_type == TensorProto.STRING:
        return _strings(tensor, subject)
    data, count, stored = _data(tensor, subject, folder, raw)
    dtype = _FOREIGN.get(tensor.data_type)
    if dtype is not None and dtype.name in _BITS:
        array = _unpacked(np.frombuffer(data, stored), count, _BITS[dtype.name], dtype)
    elif tensor.data_type == TensorProto.BOOL:
        array = np.frombuffer(data, np.uint8) != 0  # NumPy relies on True being 1
    else:
        array = np.frombuffer(data, stored.newbyteorder("<")).astype(stored, copy=False)
    array = array.reshape(tuple(tensor.dims))
    array.flags.writeable = False
    return array


def _strings(tensor: TensorProto, subject: Subject) -> Array:
    check_extents(tuple(tensor.dims), subject)
    if len(tensor.string_data) != prod(tensor.dims):
        count, wanted = len(tensor.string_data), prod(tensor.dims)
        raise subject.error(f"has {count} elements, but its shape asks for {wanted}")
    return strings_of([*map(text, tensor.string_data)]).reshape(tuple(tensor.dims))


def strings_of(texts: Any) -> Array:
    """A read-only array of a string, or of a list of them."""
    listed = [text(one) for one in texts] if isinstance(texts, list) else text(texts)
    array = np.array(listed, object)
    array.flags.writeable = False
    return array


def take_in(tensor: TensorProto, where: Location, folder: Folder) -> None:
    """Bring a tensor's external data into the model."""
    if tensor.data_location == TensorProto.EXTERNAL:
        subject = Subject(f"the tensor '{text(tensor.name)}'", where)
        tensor.raw_data = _data(tensor, subject, folder)[0]
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _data(
    tensor: TensorProto, subject: Subject, folder: Folder, raw: bytes | None = None
) -> tuple[bytes, int, np.dtype[Any]]:
    """A tensor's bytes (little-endian), its number of elements, and the type that they are stored in."""
    shape = tuple(tensor.dims)
    check_extents(shape, subject)
    if tensor.HasField("segment"):
        raise subject.error("is a segment of a tensor, which taskc doesn't read")
    count = stores = prod(shape)
    stored = _FOREIGN.get(tensor.data_type) or element_type(tensor.data_type, subject).numpy
    if stored.name in _BITS:
        stores = (count * _BITS[stored.name] + 7) // 8
        stored = np.dtype(np.uint8)
    nbytes = stores * stored.itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        entries = {text(entry.key): text(entry.value) for entry in tensor.external_data}
        return folder.read(entries, nbytes, subject), count, stored
    return _inside(tensor, stores, stored, subject, raw or tensor.raw_data), count, stored


def _inside(
    tensor: TensorProto, count: int, stored: np.dtype[Any], subject: Subject, raw: bytes
) -> bytes:
    """The bytes of a tensor's `count` items, which are its raw data or in another one of its fields."""
    filled = [name for name in _FIELDS if len(getattr(tensor, name))] + ["raw_data"] * bool(raw)
    if len(filled) > 1:
        raise subject.error(f"has its elements twice: in {' and in '.join(filled)}")
    if raw:
        nbytes = count * stored.itemsize
        if len(raw) != nbytes:
            raise subject.error(f"has {len(raw)} bytes, but its shape asks for {nbytes}")
        return raw
    field = _FIELD_OF.get(tensor.data_type, "int32_data")
    if filled not in ([], [field]):
        raise subject.error(f"has its elements in {filled[0]}; of its type they are in {field}")
    items = getattr(tensor, field)
    if len(items) != count:
        raise subject.error(f"has {len(items)} elements, but its shape asks for {count}")
    return _typed(items, stored, subject)


def _typed(items: Any, stored: np.dtype[Any], subject: Subject) -> bytes:
    """A typed field's items as bytes. 16-bit and 8-bit floats are written as integers with their bits."""
    if stored in (np.float32, np.float64):
        return np.array(items, stored.newbyteorder("<")).tobytes()
    bits = stored if stored.kind in "iu" else np.dtype(f"u{stored.itemsize}")
    limits = np.iinfo(bits)
    outside = next((item for item in items if not limits.min <= item <= limits.max), None)
    if outside is not None:
        raise subject.error(f"has the element {outside}, which is outside of its type")
    return np.array(items, bits.newbyteorder("<")).tobytes()


def _unpacked(data: Array, count: int, bits: int, dtype: np.dtype[Any]) -> Array:
    """Integers of less than 8 bits; the first one of a byte is in its lowest bits."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    values = ((data[:, None] >> places) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.name.startswith("float"):
        return values.view(dtype)
    values = values.astype(np.int8)
    if dtype.name.startswith("int"):
        values = np.where(values >= 1 << (bits - 1), values - (1 << bits), values)
    return values.astype(dtype)


def _type_name(number: int) -> str:
    if number == TensorProto.STRING:
        return "string"
    names: dict[int, str] = {value: name for name, value in TensorProto.DataType.items()}
    return names.get(number, f"number {number}")


# --- A node's attributes as Python values -------------------------------------------------------


FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_LISTS = {"floats", "ints", "strings", "tensors", "graphs", "sparse_tensors", "type_protos"}
_SINGLE = sorted(set(FIELDS.values()) - _LISTS)


def type_name(number: int) -> str:
    """The name of an attribute's type in messages."""
    if number not in AttributeProto.AttributeType.values():
        return f"number {number}"
    name: str = AttributeProto.AttributeType.Name(number)
    return name.lower().replace("_", " ")


def attribute_of(
    attribute: AttributeProto,
    subject: Subject,
    folder: Folder,
    graph_of: Callable[[GraphProto], WrittenGraph],
) -> WrittenAttribute:
    """An attribute's type and value; `part` names the attribute in messages."""
    number = attribute.type or _written(attribute)
    if attribute.ref_attr_name:
        return WrittenAttribute(number, Reference(text(attribute.ref_attr_name)))
    field = FIELDS.get(number, "")
    others = [name for name in _filled(attribute) if name != field]
    if others:
        raise subject.error(f"is of type {type_name(number)}, but has {', '.join(others)}")
    if field in ("t", "g") and not attribute.HasField(field):
        raise subject.error(f"is of type {type_name(number)}, but has none")
    value: object
    match field:
        case "f" | "i":
            value = getattr(attribute, field)
        case "s":
            value = _string(attribute.s)
        case "t":
            value = array_of(attribute.t, subject, folder)
        case "g":
            value = graph_of(attribute.g)
        case "floats" | "ints":
            value = [*getattr(attribute, field)]
        case "strings":
            value = [*map(_string, attribute.strings)]
        case "tensors":
            value = [array_of(item, subject, folder) for item in attribute.tensors]
        case "graphs":
            value = [*map(graph_of, attribute.graphs)]
        case "tp":
            value = _inner_type(attribute.tp, subject)
        case _:
            raise subject.error(f"is of type {type_name(number)}, which taskc doesn't read")
    return WrittenAttribute(number, value)


def _filled(attribute: AttributeProto) -> list[str]:
    found = [name for name in _SINGLE if attribute.HasField(name)]
    return found + sorted(name for name in _LISTS if len(getattr(attribute, name)))


def _written(attribute: AttributeProto) -> int:
    """The type of an attribute that doesn't name it, as in the oldest models; 0 if it can't be inferred."""
    filled = _filled(attribute)
    numbers = {field: number for number, field in FIELDS.items()}
    return numbers[filled[0]] if len(filled) == 1 else 0


def _string(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
