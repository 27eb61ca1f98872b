"""Single nodes and types as protobuf: ONNX's tables ask for them where an operator's body depends on its node."""

from __future__ import annotations

from taskc.onnx.attributes import FIELDS
from taskc.onnx.protobuf import AttributeProto, NodeProto, TypeProto
from taskc.onnx.tensors import COMPUTED
from taskc.onnx.written import Attribute
from taskc.operators.graph import Node, Value

_NUMBERS = {name: number for number, name in COMPUTED.items()}

PLAIN = {
    "f",
    "i",
    "s",
    "floats",
    "ints",
    "strings",
}  # fields of attributes: numbers, strings, lists of them


def node_proto(node: Node, attributes: dict[str, Attribute]) -> NodeProto:
    """A node whose attributes are plain."""
    return NodeProto(
        op_type=node.operator,
        domain=node.domain,
        input=node.inputs,
        output=node.outputs,
        attribute=[_attribute(name, attribute) for name, attribute in attributes.items()],
    )


def _attribute(name: str, attribute: Attribute) -> AttributeProto:
    value = attribute.value
    if isinstance(value, list):
        value = [_bytes(item) for item in value]
    return AttributeProto(name=name, type=attribute.type, **{FIELDS[attribute.type]: _bytes(value)})


def _bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def type_proto(value: Value) -> TypeProto:
    """The type of a tensor as far as it is known."""
    proto = TypeProto()
    if value.dtype is None:
        return proto
    proto.tensor_type.elem_type = _NUMBERS[value.dtype.name]
    if value.shape is not None:
        proto.tensor_type.shape.SetInParent()
        for extent in value.shape:
            key = "dim_value" if isinstance(extent, int) else "dim_param"
            proto.tensor_type.shape.dim.add(**({} if extent is None else {key: extent}))
    return proto
