"""Programs of `torch.export` as models: `tc.torch.compile(exported)`.

    exported = torch.export.export(module, (x,))
    model = tc.torch.compile(exported)
    model(x)                                        tc.save_bundle(model, "module.taskc")

Every operator needs a row: a model runs without PyTorch. Sizes that the export leaves open are names of extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from taskc.arrays.dlpack import host_view
from taskc.arrays.torch import readable, torch
from taskc.backward import imported
from taskc.errors import CompileError
from taskc.ir.text_rules import unused
from taskc.onnx.session import compile as compile_graph
from taskc.operators.graph import Array, Graph, Value
from taskc.torch.aten import ROWS
from taskc.torch.graph import Recorder, Tensor, element_type, place_of, recorded, refused


def compile(exported: Any, **options: Any) -> Any:
    """Compile a program of `torch.export` into a model that is called with its inputs, in order or by name.

    The options are those of `tc.compile`.
    """
    library = imported("torch")
    if not isinstance(exported, library.export.ExportedProgram):
        raise CompileError(
            f"tc.torch.compile takes a program of torch.export, not {type(exported).__name__}",
            hint='tc.torch.compile(torch.export.export(module, inputs)); torch.compile(module, backend="taskc")'
            " compiles a module for its calls",
        )
    return compile_graph(graph_of(exported), **options)


def graph_of(exported: Any) -> Graph:
    """The graph of operators of an exported program."""
    library: Any = torch()
    exported = exported.run_decompositions(_decompositions(library))
    for node, reason in refused(exported.graph.nodes).items():
        raise CompileError(
            f"taskc doesn't compute {node.target}: {reason}",
            place_of(node),
            'torch.compile(module, backend="taskc") leaves such operators to PyTorch',
        )
    _check_writes(exported)
    recorder, values = Recorder(), dict[Any, Any]()
    inputs: list[Value] = []
    known = _tensors(exported)
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta["val"]
        if node.name in known:
            recorder.constants[node.name] = known[node.name]
        elif isinstance(value, library.Tensor):
            extents = [n if type(n) is int else str(n) for n in value.shape]
            inputs.append(Value(node.name, element_type(value.dtype), tuple(extents)))
            recorder.bind_shape(Tensor(node.name, element_type(value.dtype)), value.shape)
        elif node.users:
            raise CompileError(f"the input '{node.name}' of an exported program is no tensor")
        else:
            continue
        values[node] = Tensor(node.name, element_type(value.dtype), tuple(value.shape))
    results = recorded(exported.graph_module, recorder, values, {})
    outputs: list[str] = []
    for one in results:
        if one is not None:  # has a name of its own, also where two are one tensor
            outputs.append(unused(f"{one.name}_output", {*outputs}))
            recorder.Identity(values[one])
            recorder.nodes[-1] = replace(recorder.nodes[-1], outputs=(outputs[-1],))
    nodes = tuple(recorder.nodes)
    return Graph("exported", tuple(inputs), tuple(outputs), nodes, recorder.constants, {})


def _decompositions(library: Any) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of operators that the table doesn't have."""
    table = library.export.default_decompositions()
    for operator in [*table.keys()]:
        if str(operator).partition(".")[2] in ROWS:
            table.pop(operator)
    return dict(table.items())


def _tensors(exported: Any) -> Mapping[str, Array]:
    """The arrays of parameters, buffers and constants, by the names of their placeholders."""
    arrays: dict[str, Array] = {}
    for one in exported.graph_signature.input_specs:
        if one.target in exported.state_dict or one.target in exported.constants:
            of = exported.state_dict if one.target in exported.state_dict else exported.constants
            array = host_view(readable(of[one.target].detach()).contiguous())
            assert array is not None
            arrays[one.arg.name] = array
    return arrays


def _check_writes(exported: Any) -> None:
    for one in exported.graph_signature.output_specs:
        if one.kind.name != "USER_OUTPUT":
            raise CompileError(
                f"an exported program writes to '{one.target or one.arg.name}', and a model keeps nothing",
                hint="return the new value, and pass it to the next call",
            )
