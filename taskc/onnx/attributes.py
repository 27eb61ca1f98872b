"""A node's attributes as Python's values."""

from __future__ import annotations

from collections.abc import Callable

from taskc.onnx.external import Folder
from taskc.onnx.protobuf import AttributeProto, GraphProto, text
from taskc.onnx.tensors import array_of
from taskc.onnx.written import Attribute, Part, Reference, WrittenGraph

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
    """What messages call an attribute's type."""
    if number not in AttributeProto.AttributeType.values():
        return f"number {number}"
    name: str = AttributeProto.AttributeType.Name(number)
    return name.lower().replace("_", " ")


def attribute_of(
    attribute: AttributeProto,
    part: Part,
    folder: Folder,
    graph_of: Callable[[GraphProto], WrittenGraph],
) -> Attribute:
    """An attribute's type and value; `part` is the attribute."""
    number = attribute.type or _written(attribute)
    if attribute.ref_attr_name:
        return Attribute(number, Reference(text(attribute.ref_attr_name)))
    field = FIELDS.get(number, "")
    others = [name for name in _filled(attribute) if name != field]
    if others:
        raise part.error(f"is of type {type_name(number)}, but has {', '.join(others)}")
    if field in ("t", "g") and not attribute.HasField(field):
        raise part.error(f"is of type {type_name(number)}, but has none")
    value: object
    match field:
        case "f" | "i":
            value = getattr(attribute, field)
        case "s":
            value = _string(attribute.s)
        case "t":
            value = array_of(attribute.t, part, folder)
        case "g":
            value = graph_of(attribute.g)
        case "floats" | "ints":
            value = [*getattr(attribute, field)]
        case "strings":
            value = [*map(_string, attribute.strings)]
        case "tensors":
            value = [array_of(item, part, folder) for item in attribute.tensors]
        case "graphs":
            value = [*map(graph_of, attribute.graphs)]
        case _:
            raise part.error(f"is of type {type_name(number)}, which taskc doesn't read")
    return Attribute(number, value)


def _filled(attribute: AttributeProto) -> list[str]:
    found = [name for name in _SINGLE if attribute.HasField(name)]
    return found + sorted(name for name in _LISTS if len(getattr(attribute, name)))


def _written(attribute: AttributeProto) -> int:
    """The type of an attribute that doesn't name it, as in the oldest models; 0 if nothing says."""
    filled = _filled(attribute)
    numbers = {field: number for number, field in FIELDS.items()}
    return numbers[filled[0]] if len(filled) == 1 else 0


def _string(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
