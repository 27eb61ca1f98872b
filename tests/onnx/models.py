"""Small models for tests, written with the package onnx's helpers."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

OPSET = 21


def tensor(name: str, *shape: int | str | None, type: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, type, shape)


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[str],
    *,
    opset: int = OPSET,
    domains: tuple[str, ...] = (),
    functions: tuple[Any, ...] = (),
    **of_graph: Any,
) -> ModelProto:
    """A model whose outputs have no types; the operator sets of other domains have version 1."""
    ends = [ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "main", inputs, ends, **of_graph)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1) for domain in domains]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
