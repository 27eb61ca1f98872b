"""Partition a model: parts that taskc doesn't support are left to ONNX Runtime.

    x -> Relu -> a -> Own -> b -> Add -> y      becomes    x -> Relu -> a,    a -> Own -> b,    b -> Add -> y

Nodes of one side are in one part unless they depend on different parts of the other side: the number of parts is one
more than the longest path through the model changes sides. Results of constants belong to every part that reads them.

`extract` cuts one part out of a model, between named tensors. By default, outputs are the model's, and inputs are those
of the model's inputs that the outputs need.

    x -> Conv -> a -> Relu -> b -> MaxPool -> y    with inputs=["a"], outputs=["b"] becomes    a -> Relu -> b
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from typing import Any

from taskc.backend.limits import LimitError
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.types import from_numpy
from taskc.onnx.importer import Imported, behind, is_known
from taskc.onnx.model import Computed, Model
from taskc.onnx.reader import load, read_proto, value_of
from taskc.onnx.serialized import (
    COMPUTED,
    Folder,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    dtype_of,
    infer_types,
    take_in,
    text,
)
from taskc.onnx.session import compile
from taskc.onnx.stages import Staged
from taskc.operators.graph import Graph, Value
from taskc.runtime.served import Runnable
from taskc.runtime.settings import thread_limit


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
    names = {text(name): at for at, node in enumerate(graph.node) for name in node.output if name}
    makers = {name: at for name, at in names.items() if name not in inputs}
    needed = behind(outputs, makers, lambda at: reads_of(graph.node[at]))
    nodes = sorted({makers[name] for name in needed if name in makers})
    return [graph.node[at] for at in nodes], needed - makers.keys() - inputs


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


# --- ONNX Runtime, if it is installed: the reference for `taskc verify`, and the runtime for parts that are left to it


class RuntimeSession:
    """A model in ONNX Runtime with all optimizations, on a number of threads."""

    def __init__(self, model: str | bytes, threads: int | None) -> None:
        try:
            runtime: Any = import_module("onnxruntime")
        except ImportError:
            hint = "pip install onnxruntime"
            raise CompileError("ONNX Runtime isn't installed", hint=hint) from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0  # 0: all
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 4
        try:
            self._session = runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no class in common
            raise CompileError(f"ONNX Runtime doesn't take the model: {error}") from None

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """The outputs of these names, or all of the model's in order."""
        try:
            results: list[Any] = self._session.run(outputs, dict(feeds))
        except Exception as error:
            raise CompileError(f"ONNX Runtime doesn't run the model: {error}") from None
        return results


_logger = logging.getLogger("taskc")

_NUMBERS = {name: number for number, name in COMPUTED.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One part of a partition.

    is_left  whether ONNX Runtime runs it
    nodes    titles of the model's nodes
    model    the part as a model of its own
    """

    is_left: bool
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: ModelProto

    def __str__(self) -> str:
        who = "ONNX Runtime" if self.is_left else "taskc"
        ends = f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        return f"{who}: {ends}: {', '.join(self.nodes) or 'constants'}"


class Partition(Model):
    """A model in parts, called like any other model."""

    def __init__(self, steps: Sequence[_RunPart], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._steps = steps

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, with who runs them; a call may leave one to ONNX Runtime."""
        return tuple([step.part for step in self._steps])

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *(f"  {part}" for part in self.parts)])


def partition(
    model: str | os.PathLike[str] | bytes | ModelProto,
    leave: Collection[str] = (),
    *,
    exact: bool = False,
    precision: str = "f32",
    threads: int | None = None,
    memory: int | None = None,
) -> Partition:
    """Run a model that taskc doesn't fully support: unknown operators, tensors of strings, sequences.

    leave  more operators, and names of nodes, to leave to ONNX Runtime
    exact, precision, threads, memory  as for `tc.compile`; the memory is that of each of taskc's parts

    A part that can't be compiled for the shapes of a call is left to ONNX Runtime from then on, with a logged warning.
    At its first call all of a part is traced before anything is compiled: where the results of one stage decide what
    the next one is, ONNX Runtime computes them.
    """
    whole = _Whole.of(model)
    parts = tuple(_parts(whole, {*leave}))
    left = [node for part in parts if part.is_left for node in part.nodes]
    if left and importlib.util.find_spec("onnxruntime") is None:
        raise CompileError(
            f"taskc doesn't take {', '.join(left)}, and ONNX Runtime isn't installed",
            whole.where,
            "pip install onnxruntime",
        )
    options: dict[str, Any] = {"exact": exact, "precision": precision}
    options |= {"threads": threads, "memory": memory}
    title = "a part of the model" if len(parts) > 1 else "the whole model"
    if parts and all(part.is_left for part in parts):
        _logger.warning("%s is left to ONNX Runtime: taskc takes none of its nodes", title)
    steps = [
        _RunPart(part, title, threads, None if part.is_left else compile(part.model, **options))
        for part in parts
    ]
    outputs = [text(value.name) for value in whole.proto.graph.output]
    values = [value_of(whole.said[name]) for name in outputs]
    name = text(whole.proto.graph.name)
    return Partition(steps, name, whole.inputs, values, _Parts(outputs, steps))


@dataclass(frozen=True, slots=True)
class _Whole:
    """A loaded model; `said` has the types of its tensors, declared and inferred."""

    proto: ModelProto
    where: Location
    folder: Folder
    said: Mapping[str, ValueInfoProto]
    inputs: tuple[Value, ...]

    @staticmethod
    def of(model: str | os.PathLike[str] | bytes | ModelProto) -> _Whole:
        proto, where, folder = load(model)
        said = said_of(proto)
        graph = proto.graph
        weights = {text(tensor.name) for tensor in graph.initializer}
        model_inputs = [value for value in graph.input if text(value.name) not in weights]
        ends = [text(value.name) for value in graph.output]
        known = [
            *{**dict.fromkeys(text(value.name) for value in graph.input), **dict.fromkeys(weights)}
        ]
        # Extents that a model declares for computed tensors may be wrong: nobody checks them.
        types = infer_types(model_of(proto, said, known, ends, graph.node, ()))
        inner = {value.name: _of_type(value) for value in types if value.name not in known}
        inputs = tuple(map(value_of, model_inputs))
        return _Whole(proto, where, folder, {**said, **inner}, inputs)


def _of_type(value: ValueInfoProto) -> ValueInfoProto:
    """The declared type without its shape."""
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    if copy.type.WhichOneof("value") == "tensor_type":
        copy.type.tensor_type.ClearField("shape")
    return copy


def _is_ours(value: ValueInfoProto | None) -> bool:
    """Whether taskc computes with such a tensor; one of unknown type may be one."""
    kind = value.type.WhichOneof("value") if value is not None else None
    if value is None or kind is None:
        return True
    number = value.type.tensor_type.elem_type
    return kind == "tensor_type" and (not number or dtype_of(number) is not None)


def _is_taken(node: NodeProto, whole: _Whole) -> bool:
    """Whether taskc supports a node."""
    reads = sorted(reads_of(node))
    outputs = [text(name) for name in node.output if name]
    if not all(_is_ours(whole.said.get(name)) for name in (*reads, *outputs)):
        return False
    alone = model_of(whole.proto, whole.said, reads, outputs, [node], ())
    names = {(text(function.domain), text(function.name)) for function in alone.functions}
    if names.isdisjoint(_kinds(node)):
        del alone.functions[:]  # reading them for each node would take long
    try:
        read_proto(alone, whole.where, whole.folder, is_known)
    except CompileError:
        return False
    return True


def _kinds(node: NodeProto) -> Iterator[tuple[str, str]]:
    yield text(node.domain), text(node.op_type)
    for graph in graphs_of(node):
        for inner in graph.node:
            yield from _kinds(inner)


def _parts(whole: _Whole, leave: Collection[str]) -> Iterator[Part]:
    """The parts in execution order."""
    graph = whole.proto.graph
    left = [
        bool({text(node.op_type), text(node.name)} & {*leave}) or not _is_taken(node, whole)
        for node in graph.node
    ]
    stages = _stages(whole, left)
    given = {value.name for value in whole.inputs}
    ends = [text(value.name) for value in graph.output]
    stage_of = {
        text(name): stages.get(at) for at, node in enumerate(graph.node) for name in node.output
    }
    fixed = [name for name in ends if stage_of.get(name) is None and name not in given]
    if fixed:
        yield _part(whole, False, (), (), fixed)
    for stage in sorted({*stages.values()}):
        members = [node for at, node in enumerate(graph.node) if stages.get(at) == stage]
        others = [node for at, node in enumerate(graph.node) if stages.get(at, stage) != stage]
        computed = {text(name) for node in members for name in node.output}
        inputs = {*given, *(name for name, of in stage_of.items() if of is not None)} - computed
        inputs &= {name for node in members for name in reads_of(node)}
        outputs = computed & {*ends, *(name for node in others for name in reads_of(node))}
        if outputs:
            yield _part(whole, bool(stage % 2), members, sorted(inputs), sorted(outputs))


def _part(
    whole: _Whole,
    is_left: bool,
    nodes: Sequence[NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Part:
    proto = cut(whole.proto, whole.where, inputs, outputs, whole.said)
    for tensor in tensors_of(proto.graph):
        take_in(tensor, whole.where, whole.folder)
    titles = tuple(map(_title, nodes))
    return Part(is_left, titles, tuple(inputs), tuple(outputs), proto)


def _title(node: NodeProto) -> str:
    name = text(node.name) or next(map(text, node.output), "")
    return f"{text(node.op_type)} '{name}'"


def _stages(whole: _Whole, left: Sequence[bool]) -> dict[int, int]:
    """The stage of each node; odd stages are left to ONNX Runtime. Nodes of constants alone have none."""
    nodes = whole.proto.graph.node
    makers = {text(name): at for at, node in enumerate(nodes) for name in node.output if name}
    given = {value.name for value in whole.inputs}
    needs = [{makers[name] for name in reads_of(node) if name in makers} for node in nodes]
    stages: dict[int, int] = {}
    try:
        order = [*TopologicalSorter(dict(enumerate(needs))).static_order()]
    except CycleError as error:
        names = " and ".join(dict.fromkeys(text(nodes[at].op_type) for at in error.args[1]))
        message = f"nodes of the model ({names}) need what they make themselves"
        raise CompileError(message, whole.where) from None
    for at in order:
        waits_for = [
            stages[need] + (left[need] != left[at]) for need in needs[at] if need in stages
        ]
        is_constant = given.isdisjoint(reads_of(nodes[at])) and not waits_for
        if (
            left[at] or not is_constant
        ):  # a constant left to ONNX Runtime may be random: it runs once
            stages[at] = max(waits_for, default=int(left[at]))
    return stages


@dataclass(slots=True)
class _RunPart:
    """Runs one part. An ONNX Runtime session is made once the types of the inputs are known.

    title      the part in messages
    is_traced  whether all its stages have been traced
    """

    part: Part
    title: str
    threads: int | None
    ours: Model | None
    is_traced: bool = False
    sessions: dict[tuple[int, ...], RuntimeSession] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.part.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.part.outputs

    def all(self) -> tuple[Runnable, ...]:
        return self.ours.programs if self.ours else ()

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        if self.ours is not None:
            has_runtime = importlib.util.find_spec("onnxruntime") is not None
            try:
                if not self.is_traced and has_runtime:
                    self.is_traced = True
                    self.ours.trace(feeds, partial(self._computed_elsewhere, feeds))
                return self.ours.run(None, feeds)
            except LimitError:
                raise
            except CompileError as error:
                if not has_runtime:
                    raise
                _logger.warning("%s is left to ONNX Runtime: %s", self.title, error)
                self.part, self.ours = replace(self.part, is_left=True), None
        numbers = self._numbers(feeds)
        if numbers not in self.sessions:
            self.sessions[numbers] = self._session(self.part.model, numbers)
        return self.sessions[numbers].run(feeds, self.part.outputs)

    def trace(self, arrays: Mapping[str, Any], computed: Computed) -> None:
        pass  # its first call does

    def _computed_elsewhere(self, feeds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        """Tensors of the part as ONNX Runtime computes them; none if it doesn't, or if one was made by rewriting."""
        try:
            model = cut(self.part.model, NOWHERE, self.part.inputs, names)
            return self._session(model, self._numbers(feeds)).run(feeds)
        except CompileError:
            return []

    def _numbers(self, feeds: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple([_number(feeds[name]) for name in self.part.inputs])

    def _session(self, model: ModelProto, numbers: Sequence[int]) -> RuntimeSession:
        return RuntimeSession(_typed(model, numbers), self.threads or thread_limit())


def _typed(model: ModelProto, numbers: Sequence[int]) -> bytes:
    """A model with these types of its inputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for value, number in zip(copy.graph.input, numbers, strict=True):
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            value.type.tensor_type.elem_type = number
    serialized: bytes = copy.SerializeToString()
    return serialized


def _number(given: Any) -> int:
    """The number of an array's type in TensorProto; 0 for something that is no array."""
    dtype = getattr(given, "dtype", None)
    if dtype is None:
        return 0
    if dtype.kind in "OUS":
        return int(TensorProto.STRING)
    return _NUMBERS[from_numpy(dtype).name]


class _Parts(Staged):
    """The parts as the stages of one model."""

    @property
    def graph(self) -> Graph:
        raise CompileError("a model in parts isn't one graph", hint="each part's model is one")

    def traced(self, arrays: Mapping[str, Any]) -> Imported:
        raise CompileError("a model in parts isn't one program", hint="each part's model is one")
