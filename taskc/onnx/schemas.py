"""ONNX's tables of operators: inputs, attributes with their defaults, and bodies of functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, InternalError
from taskc.onnx.serialized import (
    COMPUTED,
    FIELDS,
    AttributeProto,
    Folder,
    FunctionProto,
    GraphProto,
    NodeProto,
    Subject,
    TypeProto,
    WrittenAttribute,
    WrittenGraph,
    attribute_of,
    defs,
    type_name,
)
from taskc.operators.files import FILES, MICROSOFT
from taskc.operators.graph import Node, Value
from taskc.operators.op import signatures

# --- Nodes and types as protobuf: ONNX's tables need them where an operator's body depends on its node


_NUMBERS = {name: number for number, name in COMPUTED.items()}

PLAIN = {
    "f",
    "i",
    "s",
    "floats",
    "ints",
    "strings",
}  # fields of attributes: numbers, strings, lists of them


def node_proto(node: Node, attributes: dict[str, WrittenAttribute]) -> NodeProto:
    """A node with plain attributes as protobuf."""
    return NodeProto(
        op_type=node.operator,
        domain=node.domain,
        input=node.inputs,
        output=node.outputs,
        attribute=[_attribute(name, attribute) for name, attribute in attributes.items()],
    )


def _attribute(name: str, attribute: WrittenAttribute) -> AttributeProto:
    value = attribute.value
    if isinstance(value, list):
        value = [_bytes(item) for item in value]
    return AttributeProto(name=name, type=attribute.type, **{FIELDS[attribute.type]: _bytes(value)})


def _bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def type_proto(value: Value) -> TypeProto:
    """The type of a tensor as protobuf, as far as it is known."""
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


OLDEST = 7
NEWEST = defs.onnx_opset_version()
_UNBOUNDED = 2**31 - 1  # in the tables, an unlimited number of inputs or outputs


@dataclass(frozen=True, slots=True)
class Formal:
    """An attribute in an operator's schema: its type's number in AttributeProto, and its default."""

    type: int
    required: bool
    default: WrittenAttribute | None


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of an operator.

    since     the version that introduced it
    required  for each input, whether it has to be present; further inputs are like the last
    types     of each input (of each output in `output_types`): equal names are equal element types
    """

    since: int
    inputs: tuple[str, ...]
    required: tuple[bool, ...]
    types: tuple[str, ...]
    output_types: tuple[str, ...]
    counts: tuple[int, int]
    output_counts: tuple[int, int]
    attributes: dict[str, Formal]


@lru_cache(maxsize=4096)
def schema_of(operator: str, version: int, domain: str) -> Schema | None:
    """The operator as of a version of its operator set, or None.

    A deprecated version (GroupNormalization's first) is available as long as a later one isn't deprecated.
    """
    if (operator, domain) == ("LayerNormalization", "") and version < _SINCE_LAYER_NORM:
        version = _SINCE_LAYER_NORM  # ONNX Runtime writes it into models of older operator sets
    try:
        schema = defs.get_schema(operator, version, domain)
        newest = defs.get_schema(operator, domain=domain)
    except defs.SchemaError:
        return _microsoft_schema(operator) if (domain, operator) in FILES else None
    if newest.deprecated and schema.deprecated:
        return None
    single = defs.OpSchema.FormalParameterOption.Single
    return Schema(
        schema.since_version,
        tuple(formal.name for formal in schema.inputs),
        tuple(formal.option == single for formal in schema.inputs),
        tuple(formal.type_str for formal in schema.inputs),
        tuple(formal.type_str for formal in schema.outputs),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: _formal(attribute) for name, attribute in sorted(schema.attributes.items())},
    )


_SINCE_LAYER_NORM = 17
_ATTRIBUTE_TYPES = {type_name(number): number for number in FIELDS}


def _microsoft_schema(operator: str) -> Schema | None:
    """The schema of an operator of com.microsoft, by the library's own table."""
    signature = signatures(MICROSOFT).get(operator)
    if signature is None:
        return None
    inputs, attributes = signature.inputs, {}
    for name, formal in signature.attributes.items():
        number, default = _ATTRIBUTE_TYPES[formal.type], formal.default
        written = None if default is None else WrittenAttribute(number, default)
        attributes[name] = Formal(number, formal.required, written)
    required = tuple(formal.required for formal in inputs)
    least = max((place + 1 for place, one in enumerate(required) if one), default=0)
    return Schema(
        signature.version,
        tuple(formal.name for formal in inputs),
        required,
        tuple(formal.type for formal in inputs),
        ("",) * signature.outputs[1],
        (least, signature.most_inputs),
        signature.outputs,
        attributes,
    )


def _formal(attribute: defs.OpSchema.Attribute) -> Formal:
    default = attribute.default_value
    has_default = default.type != AttributeProto.UNDEFINED
    return Formal(
        attribute.type.value,
        attribute.required,
        attribute_of(default, Subject("a default", NOWHERE), Folder(None), _no_graph)
        if has_default
        else None,
    )


def _no_graph(graph: GraphProto) -> WrittenGraph:
    raise InternalError("an attribute's default is a graph")


def at_least_oldest(node: Node) -> Node:
    """The node raised to the oldest supported operator set, if its operator is the same in both."""
    if node.domain or node.version >= OLDEST:
        return node
    now, then = (schema_of(node.operator, version, "") for version in (OLDEST, node.version))
    if now is not None and (then is None or then.since != now.since):
        message = f"the model is of opset {node.version}, and this operator isn't the same since"
        raise node.error(message, f"taskc reads opsets {OLDEST} to {NEWEST}")
    return replace(node, version=OLDEST)


def complete(
    node: Node, attributes: dict[str, WrittenAttribute], schema: Schema
) -> dict[str, WrittenAttribute]:
    """The node's attributes with defaults added, after a check of the node against its schema."""
    _check_count(node, "input", len(node.inputs), schema.counts)
    _check_count(node, "output", len(node.outputs), schema.output_counts)
    for index, (name, required) in enumerate(zip(schema.inputs, schema.required, strict=True)):
        if required and not (index < len(node.inputs) and node.inputs[index]):
            raise node.error(f"its input {index}, {name}, is missing")
    for name, attribute in attributes.items():
        formal = schema.attributes.get(name)
        if formal is None:
            if name.startswith("__"):  # an annotation by an exporter
                continue
            has = ", ".join(sorted(schema.attributes)) or "none"
            raise node.error(
                f"it has no attribute '{name}' in opset {node.version}", f"it has {has}"
            )
        if attribute.type != formal.type:
            kinds = f"{type_name(attribute.type)}, not {type_name(formal.type)}"
            raise node.error(f"its attribute '{name}' is of type {kinds}")
        texts = attribute.value if isinstance(attribute.value, list) else [attribute.value]
        if any(isinstance(text, bytes) for text in texts):
            raise node.error(f"its attribute '{name}' isn't text in UTF-8")
    for name, formal in schema.attributes.items():
        if formal.required and name not in attributes:
            raise node.error(f"its attribute '{name}' is missing")
    defaults = {
        name: formal.default for name, formal in schema.attributes.items() if formal.default
    }
    return dict(sorted({**defaults, **attributes}.items()))


def made_types(node: Node, schema: Schema, types: list[Value]) -> Iterator[Value]:
    """The known types of a node's outputs: those that share an input's element type."""
    known = {
        schema.types[min(at, len(schema.types) - 1)]: value.dtype
        for at, value in enumerate(types)
        if value.dtype is not None
    }
    for at, name in enumerate(node.outputs):
        dtype = known.get(schema.output_types[min(at, len(schema.output_types) - 1)])
        if name and dtype is not None:
            yield Value(name, dtype)


def _check_count(node: Node, what: str, count: int, limits: tuple[int, int]) -> None:
    least, most = limits
    if least <= count <= most:
        return
    takes = str(least) if least == most else f"{least} to {most}"
    if most >= _UNBOUNDED:
        takes = f"at least {least}"
    verb = "takes" if what == "input" else "makes"
    raise node.error(f"it has {count} {what}s, but {verb} {takes}")


def body_of(
    node: Node, attributes: dict[str, WrittenAttribute], types: list[Value]
) -> FunctionProto | None:
    """ONNX's definition of this node by other operators, or None; `types` are its inputs'.

    A body names the operator sets of its nodes; of several bodies, this is the latest up to the node's version. Some
    bodies depend on the node's attributes and types.
    """
    schema = defs.get_schema(node.operator, node.version, node.domain)
    if version := _version(schema.function_opset_versions, node):
        return _function(schema.get_function_with_opset_version(version))
    if version := _version(schema.context_dependent_function_opset_versions, node):
        if any(FIELDS[attribute.type] not in PLAIN for attribute in attributes.values()):
            return None
        proto = node_proto(node, attributes).SerializeToString()
        kinds = [type_proto(value).SerializeToString() for value in types]
        try:
            body = schema.get_context_dependent_function_with_opset_version(version, proto, kinds)
        except (RuntimeError, ValueError, defs.SchemaError) as error:
            raise node.error(f"ONNX can't say what defines it: {error}") from None
        if not body:
            message = (
                "what defines it depends on the types of its inputs, which the model doesn't say"
            )
            raise node.error(message, "run ONNX's shape inference on the model")
        return _function(body)
    return None


def _version(versions: list[int], node: Node) -> int:
    """The latest version of a body up to the node's, else the first; 0 if there is none."""
    return max((v for v in versions if v <= node.version), default=min(versions, default=0))


def _function(data: bytes) -> FunctionProto:
    proto: FunctionProto = FunctionProto.FromString(data)
    return proto
