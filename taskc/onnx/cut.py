"""The protobuf of a part of a model: the nodes and initializers that compute some tensors from others.

Cutting a part out of a model, between named tensors.

    x -> Conv -> a -> Relu -> b -> MaxPool -> y    with inputs=["a"], outputs=["b"] becomes    a -> Relu -> b

By default, outputs are the model's, and inputs are those of the model's inputs that the outputs need.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskc.errors import CompileError, Location
from taskc.onnx.importer import is_known
from taskc.onnx.protobuf import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, text
from taskc.operators.graph import Graph


def cut(
    proto: ModelProto,
    where: Location,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    said: Mapping[str, ValueInfoProto] | None = None,
) -> ModelProto:
    """The part of a model between the named tensors; by default to its outputs, and from the inputs these need.

    said  the types of its tensors, if more are known than the model declares
    """
    graph = proto.graph
    weights = {text(tensor.name): tensor for tensor in graph.initializer}
    if outputs is None:
        outputs = [text(value.name) for value in graph.output]
    model_inputs = [text(value.name) for value in graph.input]
    computed = (text(name) for node in graph.node for name in node.output if name)
    _check_names([*(inputs or ()), *outputs], {*model_inputs, *weights, *computed}, where)
    nodes, needed = _needed(graph, {*(inputs or ())}, outputs)
    ends = [name for name in model_inputs if name in needed and name not in weights]
    if inputs is None:
        inputs = ends
    elif ends:
        listed = ", ".join(f"'{name}'" for name in ends)
        message = f"the outputs need what isn't among the inputs: {listed}"
        raise CompileError(message, where, "add it, or tensors that are made from it")
    return model_of(
        proto,
        said_of(proto) if said is None else said,
        inputs,
        outputs,
        nodes,
        [weights[name] for name in weights if name in needed],
    )


def _check_names(given: Iterable[str], names: set[str], where: Location) -> None:
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean '{close[0]}'?" if close else None
            raise CompileError(f"the model has no tensor '{name}'", where, hint)


def _needed(
    graph: GraphProto, inputs: set[str], outputs: Sequence[str]
) -> tuple[list[NodeProto], set[str]]:
    """The nodes that compute the outputs from the inputs, and the names of other tensors that these read."""
    makers = {text(name): at for at, node in enumerate(graph.node) for name in node.output if name}
    node_indices: set[int] = set()
    others: set[str] = set()
    wanted = [*outputs]
    while wanted:
        name = wanted.pop()
        if name in inputs:
            continue
        if name not in makers:
            others.add(name)
        elif makers[name] not in node_indices:
            node_indices.add(makers[name])
            wanted += reads_of(graph.node[makers[name]])
    return [graph.node[at] for at in sorted(node_indices)], others


def reads_of(node: NodeProto) -> set[str]:
    """A node's inputs, and the names that its graphs capture."""
    names = {text(name) for name in node.input if name}
    for graph in graphs_of(node):
        defined = {text(item.name) for item in (*graph.input, *graph.initializer)}
        defined.update(text(name) for inner in graph.node for name in inner.output)
        used = {text(value.name) for value in graph.output}.union(*map(reads_of, graph.node))
        names |= used - defined
    return names


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def said_of(proto: ModelProto) -> dict[str, ValueInfoProto]:
    """The types that a model declares for its tensors."""
    graph = proto.graph
    declared = {text(item.name): item for item in (*graph.value_info, *graph.input, *graph.output)}
    for tensor in graph.initializer:
        value = ValueInfoProto(name=text(tensor.name))
        value.type.tensor_type.elem_type = tensor.data_type
        value.type.tensor_type.shape.dim.extend(
            value.type.tensor_type.shape.Dimension(dim_value=n) for n in tensor.dims
        )
        declared.setdefault(value.name, value)
    return declared


def model_of(
    whole: ModelProto,
    said: Mapping[str, ValueInfoProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
) -> ModelProto:
    """A model of parts of another one, with the types that are known of its tensors."""

    def values(names: Iterable[str]) -> list[ValueInfoProto]:
        return [said.get(name) or ValueInfoProto(name=name) for name in names]

    nodes = [_without_inputs(node, {*inputs}) for node in nodes]
    computed = [text(name) for node in nodes for name in node.output]
    return ModelProto(
        ir_version=whole.ir_version,
        opset_import=whole.opset_import,
        functions=whole.functions,
        graph=GraphProto(
            name=text(whole.graph.name),
            node=nodes,
            initializer=weights,
            input=values(inputs),
            output=values(outputs),
            value_info=[said[name] for name in computed if name in said and name not in outputs],
        ),
    )


def _without_inputs(node: NodeProto, inputs: set[str]) -> NodeProto:
    """A node whose outputs don't redefine an input of the part: such an output gets another name, unused."""
    names = [text(name) for name in node.output]
    if inputs.isdisjoint(names):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [f"{name}/unused" if name in inputs else name for name in names]
    return copy


def tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    """All tensors in a graph's nodes and initializers, at any depth."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
        for inner in graphs_of(node):
            yield from tensors_of(inner)


def extract(
    model: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """The graph between the named tensors."""
    from taskc.onnx.reader import load, read_proto

    proto, where, folder = load(model)
    return read_proto(cut(proto, where, inputs, outputs), where, folder, is_known)


def extract_model(
    model: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> ModelProto:
    """The same part as a model to be saved; external data of the whole one is included in it."""
    from taskc.onnx.reader import load
    from taskc.onnx.serialized import take_in

    proto, where, folder = load(model)
    part = cut(proto, where, inputs, outputs)
    for tensor in tensors_of(part.graph):
        take_in(tensor, where, folder)
    return part
