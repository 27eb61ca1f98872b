"""Read a model (a file, bytes or a ModelProto) as a graph of operators.

Reading takes three steps. `weights.py` reads large weights apart. This module parses the rest of the file, a protobuf,
into graphs and functions as written. `resolve.py` makes one graph of them, with every name and operator resolved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError

from taskc.errors import NOWHERE, CompileError, Location
from taskc.onnx.resolve import IsKnown, in_onnx, resolve
from taskc.onnx.schemas import NEWEST, OLDEST, body_of
from taskc.onnx.serialized import (
    IR_VERSION,
    Folder,
    Function,
    FunctionProto,
    GraphProto,
    Key,
    ModelProto,
    NodeProto,
    Subject,
    TensorShapeProto,
    ValueInfoProto,
    WrittenAttribute,
    WrittenGraph,
    WrittenNode,
    array_of,
    attribute_of,
    check_extents,
    dtype_of,
    foreign_type,
    text,
)
from taskc.onnx.weights import NO_WEIGHTS, Parts, Weights, parts_of
from taskc.operators.graph import Array, Graph, Node, Value

_DEEPEST = 40


def read(
    model: str | os.PathLike[str] | bytes | ModelProto,
    is_known: IsKnown = in_onnx,
    parts: Callable[[], Parts] | None = None,
) -> Graph:
    """The graph of a model.

    is_known  whether an operator of a domain and version needn't be expanded
    parts     returns the file's parts, where they are being read already
    """
    if isinstance(model, ModelProto):
        return read_proto(model, NOWHERE, Folder(None), is_known)
    where, folder = _place_of(model)
    with _told(where):
        rest, weights = parts_of(model) if parts is None else parts()
    return read_proto(_parsed(rest, where), where, folder, is_known, weights)


def read_proto(
    proto: ModelProto,
    where: Location,
    folder: Folder,
    is_known: IsKnown = in_onnx,
    weights: Weights = NO_WEIGHTS,
) -> Graph:
    """The graph of a loaded model."""
    if not proto.HasField("graph"):
        raise CompileError("this is no ONNX model: it has no graph", where)
    if proto.ir_version > IR_VERSION:
        message = f"the model is written in version {proto.ir_version} of ONNX's format"
        raise CompileError(message, where, f"taskc reads versions up to {IR_VERSION}")
    functions: dict[Key, Function] = {}
    for function in proto.functions:
        key, parsed = function_of(function, where, folder)
        if key in functions:
            raise CompileError(f"the model defines the function {key[1]} twice", where)
        functions[key] = parsed
    opsets = _opsets(proto, where)
    reader = _GraphReader(opsets, where, folder)

    def body(
        node: Node, attributes: dict[str, WrittenAttribute], types: list[Value]
    ) -> Function | None:
        body_proto = body_of(node, attributes, types)
        if body_proto is None:
            return None
        if not any(entry.domain == "" for entry in body_proto.opset_import):
            body_proto.opset_import.add(version=opsets.get("", NEWEST))
        return function_of(body_proto, where, folder)[1]

    return resolve(reader.graph(proto.graph, weights), functions, body, is_known, where)


def load(
    model: str | os.PathLike[str] | bytes | ModelProto,
) -> tuple[ModelProto, Location, Folder]:
    """A model's protobuf, the file named in messages, and the folder of its external data."""
    if isinstance(model, ModelProto):
        return model, NOWHERE, Folder(None)
    where, folder = _place_of(model)
    with _told(where):
        data = Path(model).read_bytes() if isinstance(model, (str, os.PathLike)) else bytes(model)
    return _parsed(data, where), where, folder


def _place_of(model: str | os.PathLike[str] | bytes) -> tuple[Location, Folder]:
    """The file named in messages, and the folder of the model's external data."""
    if not isinstance(model, (str, os.PathLike)):
        return NOWHERE, Folder(None)
    path = Path(model)
    return Location(str(path), 0, 0, 0, 0), Folder(path.parent)


@contextmanager
def _told(where: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CompileError(f"the model can't be read: {error.strerror}", where) from None


def _parsed(data: bytes, where: Location) -> ModelProto:
    try:
        proto: ModelProto = ModelProto.FromString(data)
    except DecodeError:
        message = "this is no ONNX model, or one that is damaged: its bytes are no ModelProto"
        raise CompileError(message, where) from None
    return proto


def _opsets(proto: ModelProto | FunctionProto, where: Location) -> dict[str, int]:
    """The version of each operator set, by domain."""
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = domain_of(entry.domain)
        if not 0 < entry.version < 2**31:
            message = f"the model uses version {entry.version} of the operator set '{domain}'"
            raise CompileError(message, where, "versions count from 1")
        if versions.setdefault(domain, entry.version) != entry.version:
            raise CompileError(f"two versions of the operator set '{domain}' are imported", where)
    if versions.get("", OLDEST) > NEWEST:
        message = f"the model uses opset {versions['']} of ONNX"
        raise CompileError(message, where, f"taskc reads opsets {OLDEST} to {NEWEST}")
    return versions


def domain_of(domain: str) -> str:
    """The domain; ONNX's own has two names."""
    name = text(domain)
    return "" if name == "ai.onnx" else name


def function_of(proto: FunctionProto, where: Location, folder: Folder) -> tuple[Key, Function]:
    """A function's key (domain, name and overload), and its definition."""
    reader = _GraphReader(_opsets(proto, where), where, folder)
    inputs = tuple(map(text, proto.input))
    if "" in inputs or len({*inputs}) < len(inputs):
        message = f"the function {text(proto.name)} needs a name of its own for each input"
        raise CompileError(message, where)
    defaults = {}
    for entry in proto.attribute_proto:
        name = text(entry.name)
        subject = Subject(
            f"the default of attribute '{name}' of the function {text(proto.name)}", where
        )
        defaults[name] = attribute_of(entry, subject, folder, reader.graph)
    function = Function(
        text(proto.name),
        inputs,
        tuple(map(text, proto.output)),
        tuple(map(reader.node, proto.node)),
        defaults,
    )
    return (domain_of(proto.domain), text(proto.name), text(proto.overload)), function


class _GraphReader:
    """Parses graphs whose nodes use the same operator sets."""

    def __init__(self, opsets: dict[str, int], where: Location, folder: Folder) -> None:
        self._opsets = opsets
        self._where = where
        self._folder = folder
        self._depth = 0

    def graph(self, proto: GraphProto, weights: Weights = NO_WEIGHTS) -> WrittenGraph:
        if self._depth > _DEEPEST:
            message = f"the model's graphs lie more than {_DEEPEST} deep within each other"
            raise CompileError(message, self._where)
        self._depth += 1
        try:
            return self._written(proto, weights)
        finally:
            self._depth -= 1

    def _written(self, proto: GraphProto, weights: Weights) -> WrittenGraph:
        if proto.sparse_initializer:
            raise CompileError(
                "the model has sparse initializers, which taskc doesn't read", self._where
            )
        inputs = [self._input(value) for value in proto.input]
        values = {text(value.name): value_of(value) for value in proto.value_info}
        values |= {text(value.name): value_of(value) for value in proto.output}
        values |= {value.name: value for value in inputs}
        constants: dict[str, Array] = {}
        for number, tensor in enumerate(proto.initializer):
            name = text(tensor.name)
            if name in constants:
                raise CompileError(f"there are two initializers named '{name}'", self._where)
            subject = Subject(f"the initializer '{name}'", self._where)
            constants[name] = array_of(tensor, subject, self._folder, weights.get(number))
        return WrittenGraph(
            text(proto.name),
            tuple(value for value in inputs if value.name not in constants),
            tuple(text(value.name) for value in proto.output),
            tuple(map(self.node, proto.node)),
            constants,
            values,
        )

    def node(self, proto: NodeProto) -> WrittenNode:
        domain = domain_of(proto.domain)
        node = Node(
            text(proto.op_type),
            tuple(map(text, proto.input)),
            tuple(map(text, proto.output)),
            {},
            self._opsets.get(domain, 0),
            domain,
            text(proto.name),
            self._where,
        )
        if domain not in self._opsets:
            named = f"'{domain}'" if domain else "of ONNX"
            raise node.error(
                f"the model doesn't say which version of the operator set {named} it uses"
            )
        attributes: dict[str, WrittenAttribute] = {}
        for entry in proto.attribute:
            name = text(entry.name)
            if name in attributes:
                raise node.error(f"it has two attributes '{name}'")
            subject = Subject(f"{node.title}: its attribute '{name}'", self._where)
            attributes[name] = attribute_of(entry, subject, self._folder, self.graph)
        return WrittenNode(node, attributes, text(proto.overload))

    def _input(self, proto: ValueInfoProto) -> Value:
        """An input of a type that taskc has, or of undeclared type."""
        name = text(proto.name)
        subject = Subject(f"the input '{name}'", self._where)
        value = value_of(proto, subject)
        if value.shape is not None:
            check_extents(tuple(n for n in value.shape if isinstance(n, int)), subject)
        return value


def value_of(proto: ValueInfoProto, subject: Subject | None = None) -> Value:
    """The type that a model declares for a tensor; one that taskc doesn't have is an error of the subject, if any."""
    name = text(proto.name)
    try:
        foreign = foreign_type(proto.type, subject or Subject(name, NOWHERE))
    except CompileError:
        if subject is not None:
            raise
        return Value(name)
    tensor = proto.type.tensor_type
    dtype = dtype_of(tensor.elem_type)
    shape = tuple(map(_extent, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Value(name, dtype, shape, foreign)


def _extent(proto: TensorShapeProto.Dimension) -> int | str | None:
    if proto.HasField("dim_value"):
        return proto.dim_value if proto.dim_value >= 0 else None
    return text(proto.dim_param) or None
