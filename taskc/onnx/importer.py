"""A graph becomes a program: its nodes are built in order while the program is traced.

What the model and the shapes of its inputs tell is known then: shape arithmetic is done by Python, and what else
depends on nothing but constants is computed once, by a program of its own.
"""

from __future__ import annotations

import importlib
import keyword
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import prod

import numpy as np

import taskc as tc
from taskc import CompileError, ProgramDefinition, TensorType
from taskc.errors import NOWHERE, blaming_taskc
from taskc.ir.text_rules import identifier
from taskc.lang.assumptions import Assumptions
from taskc.lang.source import called_from
from taskc.lang.tracing import TensorHandle
from taskc.onnx import operators
from taskc.onnx.graph import Array, Graph, Node
from taskc.onnx.operators import (
    Builder,
    Call,
    Counted,
    CountError,
    DataError,
    Held,
    Loose,
    NeedsKernelError,
    SizeError,
    Tensor,
    UnrolledError,
    builder_of,
    dtype_of,
    handle_of,
    is_few,
    now,
    rows_of,
)
from taskc.onnx.outputs import CountedOutput, Output, arrays_of
from taskc.onnx.ranks import settled

for _module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
    importlib.import_module(_module.name)

_MOST_FOLDED = 1 << 22  # elements that are computed ahead where that makes more of them


@dataclass(frozen=True, slots=True)
class Imported:
    """A program of a graph.

    inputs   the names of the graph's inputs that the program takes
    outputs  for each of the graph's: the name of the program's output, or the array that it always is
    """

    program: ProgramDefinition
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]


def is_known(operator: str, domain: str, version: int) -> bool:
    """Whether there is what builds an operator."""
    return builder_of(operator, version, domain) is not None


def import_graph(
    graph: Graph,
    inputs: Mapping[str, TensorType],
    known: Mapping[str, Array] | None = None,
    assumptions: Assumptions | None = None,
    late: frozenset[str] = frozenset(),
) -> Imported:
    """The program of a graph for these types of its inputs, but for those whose elements are known.

    assumptions  what the program takes for granted where extents are dimensions; it is added to. Without them the
                 program has to be right for all sizes
    late         names of what decides only when the program runs
    """
    counts = [f"{name}_count" for name in graph.outputs]
    names = _identifiers([*inputs, *graph.outputs, *counts])
    outputs: list[Output] = []
    unrolled: set[int] = set()

    def body(*handles: TensorHandle) -> dict[str, TensorHandle]:
        values: dict[str, Held] = {**dict(zip(inputs, handles, strict=True)), **(known or {})}
        scope = _Scope(values, None, late, 1, unrolled)
        made: dict[str, TensorHandle] = {}
        outputs.clear()
        _build(graph, scope)
        own = names[len(inputs) :]
        for output, name, count in zip(graph.outputs, own, own[len(counts) :], strict=False):
            outputs.append(_returned(scope.find(output), name, count, made))
        return made

    kinds = dict(zip(names, inputs.values(), strict=False))
    with called_from(NOWHERE):
        name = identifier(graph.name or "model")
        while True:
            with suppress(UnrolledError):
                program = tc.trace(name, kinds, body, assumptions=assumptions)
                return Imported(program, tuple(inputs), tuple(outputs))


def _returned(held: Held, name: str, count: str, made: dict[str, TensorHandle]) -> Output:
    """An output of a graph; what the program has to return for it is added to the handles by their names."""
    if isinstance(held, Counted):
        made |= {name: held.handle, count: held.count}
        return CountedOutput(name, held.axis)
    tensor = rows_of(held)
    if not isinstance(tensor, TensorHandle) and tensor.dtype != object:
        return tensor
    made[name] = handle_of(tensor)
    return name


def inputs_behind(graph: Graph, name: str) -> set[str]:
    """The graph's inputs that a tensor's elements depend on, other than by their shapes."""
    makers = {made: node for node in _all_nodes(graph) for made in node.outputs}
    found, waiting = {name}, [name]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.operator not in ("Shape", "Size"):
            waiting += [read for read in node.reads if read not in found]
            found.update(node.reads)
    return {value.name for value in graph.inputs if value.name in found}


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in node.graphs:
            yield from _all_nodes(inner)


def _identifiers(names: Sequence[str]) -> list[str]:
    """An identifier for each name, like it, and no two alike."""
    found: dict[str, None] = {}
    for name in names:
        own = base = identifier(name)
        count = 1
        while own in found or keyword.iskeyword(own):
            count += 1
            own = f"{base}_{count}"
        found[own] = None
    return [*found]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What names stand for in a graph, and in those around it; the rest is as in `Call`."""

    values: dict[str, Held]
    outer: _Scope | None
    late: frozenset[str]
    turns: int
    unrolled: set[int]

    def find(self, name: str) -> Held:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise KeyError(name)


def _build(graph: Graph, scope: _Scope) -> None:
    """Builds a graph's nodes, once its inputs are in the scope."""
    scope.values.update(graph.constants)
    for node in graph.needed:
        made = _built(node, scope)
        for name, tensor in zip(node.outputs, made, strict=False):
            if name and tensor is not None:
                scope.values[name] = tensor
        for name in node.outputs[len(made) :]:
            if name:
                raise node.error(f"taskc doesn't compute its output '{name}'")


def _built(node: Node, scope: _Scope) -> tuple[Held | None, ...]:
    builder = builder_of(node.operator, node.version, node.domain)
    if builder is None:
        raise node.error("taskc doesn't have this operator")

    def inline(graph: Graph, given: Sequence[Tensor], turns: int = 1) -> tuple[Tensor, ...]:
        names = [value.name for value in graph.inputs]
        values: dict[str, Held] = dict(zip(names, given, strict=True))
        inner = _Scope(values, scope, scope.late, scope.turns * turns, scope.unrolled)
        _build(graph, inner)
        _check_counts(node, graph.outputs, inner)
        made = [inner.find(name) for name in graph.outputs]
        goes_on = made[0]
        if node.operator == "Loop" and isinstance(goes_on, Loose):  # one element is read of it
            made[0] = goes_on.handle
        return tuple(map(rows_of, made))

    _check_counts(node, node.reads, scope)
    # What bodies read is made now, not where a flag decides whether it is.
    for name in {name for inner in node.graphs for name in inner.captured}:
        if not isinstance(scope.find(name), Loose):
            rows_of(scope.find(name))
    inputs, loose = settled(
        node, builder, [scope.find(name) if name else None for name in node.inputs]
    )
    call = Call(node, inputs, inline, False, scope.late, scope.turns, scope.unrolled)
    if loose is not None:
        made = _made(builder, call)
        return tuple([None if held is None else loose.like(rows_of(held)) for held in made])
    if inputs and all(map(is_few, inputs)):
        try:
            return _made(builder, replace(call, by_python=True))
        except NeedsKernelError:
            pass
    if _is_constant(node, inputs):
        return _folded(builder, call)
    return _made(builder, call)


def _check_counts(node: Node, names: Iterable[str], scope: _Scope) -> None:
    """Raises an error where it isn't known how many elements there are of what a node works on."""
    for name in names:
        if isinstance(scope.find(name), Counted):
            error = CountError(
                f"{node.title}: how many elements '{name}' has is known only when the model runs",
                node.where,
            )
            error.names = (name,)
            raise error


def _shapes(call: Call) -> str:
    kinds = [
        "none" if x is None else f"{dtype_of(x)}[{', '.join(map(str, x.shape))}]"
        for x in call.inputs
    ]
    return " and ".join(kinds) or "of which it has none"


def _made(builder: Builder, call: Call) -> tuple[Held | None, ...]:
    node = call.node
    try:
        with called_from(node.place), _blaming(builder, call):
            made = builder(call)
    except (CountError, DataError):
        raise
    except CompileError as error:
        if isinstance(error, SizeError):
            raise
        own = error.message.startswith(node.title)
        raise _of_sizes(call, error if own else node.error(error.message, error.hint)) from error
    return made if isinstance(made, tuple) else (made,)


def _blaming(builder: Builder, call: Call) -> AbstractContextManager[None]:
    """Tell a bug of a builder from a wrong model; a user's own builder raises what it likes."""
    if not builder.__module__.startswith("taskc."):
        return nullcontext()
    return blaming_taskc(f"{call.node.title}, of {_shapes(call)}")


def _of_sizes(call: Call, error: CompileError) -> CompileError:
    """The error, which may be none where extents are numbers."""
    if not call.dimensions:
        return error
    made = SizeError(error.message, error.location, error.hint, error.notes)
    made.dimensions = call.dimensions
    return made


def _is_constant(node: Node, inputs: Sequence[Held | None]) -> bool:
    """Whether all that it computes with is known, and holds for all calls."""
    if any(node.graphs):
        return False
    return all(
        tensor is None or (isinstance(tensor, np.ndarray) and tensor.dtype != object)
        for tensor in inputs
    )


def _folded(builder: Builder, call: Call) -> tuple[Held | None, ...]:
    """What a node makes of constants: a program computes it, now."""
    outputs: list[Output | None] = []
    made: dict[str, TensorHandle] = {}

    def body() -> dict[str, TensorHandle]:
        for number, held in enumerate(_made(builder, call)):
            names = f"out{number}", f"count{number}"
            outputs.append(None if held is None else _returned(held, *names, made))
        return made

    program = now(lambda: tc.trace(call.name, {}, body))
    size = sum(prod(tensor.shape) for tensor in made.values())
    given = sum(prod(tensor.shape) for tensor in call.inputs if tensor is not None)
    if size > given + _MOST_FOLDED:
        return _made(builder, call)
    arrays = now(program) if program.ir.parameters else ()
    several = arrays if isinstance(arrays, tuple) else (arrays,)
    computed = iter(arrays_of([output for output in outputs if output is not None], several))
    return tuple([None if output is None else next(computed) for output in outputs])
