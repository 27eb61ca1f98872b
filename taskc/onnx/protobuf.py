"""ONNX's protobuf classes and tables of operators; only this module imports the package onnx."""

from __future__ import annotations

from taskc.errors import CompileError

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
