"""Import a graph as a program: its nodes are built in order while the program is traced.

Constants and shapes are known then: Python does the shape arithmetic, and other results of constants are computed once,
by a program of their own.
"""

from __future__ import annotations

import keyword
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import taskc as tc
from taskc import ProgramDefinition, TensorType
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE
from taskc.ir.spans import span
from taskc.ir.text_rules import identifier, unused
from taskc.lang.source import called_from
from taskc.operators.build import built, returned
from taskc.operators.call import Call, CountError, builder_of
from taskc.operators.files import HOSTED
from taskc.operators.graph import Array, Graph, Node
from taskc.operators.tensors import Counted, Held, Loose, Tensor, rows_of
from taskc.programs.sizes import Assumptions
from taskc.programs.tracing import TensorHandle
from taskc.progress import report
from taskc.runtime.served import Output, Runnable

if TYPE_CHECKING:
    from taskc.onnx.states import States

_Node = TypeVar("_Node")


class Imported(Runnable):
    """The traced program of a graph."""

    __slots__ = ()

    program: ProgramDefinition


def is_known(operator: str, domain: str, version: int) -> bool:
    """Whether an operator has a builder, or runs on the host."""
    return (domain, operator) in HOSTED or builder_of(operator, version, domain) is not None


@span("trace")
def import_graph(
    graph: Graph,
    inputs: Mapping[str, TensorType],
    known: Mapping[str, Array] | None = None,
    assumptions: Assumptions | None = None,
    late: frozenset[str] = frozenset(),
    states: States | None = None,
) -> Imported:
    """The program of a graph for these types of its inputs; inputs with known elements are constants.

    assumptions  where extents are dimensions, the assumptions of the program are added here. Without them the program
                 has to be right for all sizes
    late         names of tensors that decide only when the program runs
    states       inputs that are written in place
    """
    report(f"tracing {graph.name or 'the model'}")
    wanted = graph.outputs if states is None else states.returned(graph)
    counts = [f"{name}_count" for name in wanted]
    names = _identifiers([*inputs, *wanted, *counts])
    outputs: list[Output] = []

    def body(*handles: TensorHandle) -> dict[str, TensorHandle]:
        values: dict[str, Held] = {**dict(zip(inputs, handles, strict=True)), **(known or {})}
        if states is not None:
            values |= states.begun(values)
        scope = _Scope(ChainMap(values), late, 1, set())
        made: dict[str, TensorHandle] = {}
        outputs.clear()
        _build(graph, scope)
        own = names[len(inputs) :]
        results: Mapping[str, Held] = scope.values if states is None else states.ended(scope.values)
        for output, name, count in zip(wanted, own, own[len(counts) :], strict=False):
            outputs.append(returned(results[output], name, count, made))
        return made

    kinds = dict(zip(names, inputs.values(), strict=False))
    for name, given in zip(names, inputs, strict=False):
        if states is not None and given in states.memory:
            kinds[name] = tc.inout[inputs[given]]
    with called_from(NOWHERE):
        name = identifier(graph.name or "model")
        program = tc.trace(name, kinds, body, assumptions=assumptions)
        return Imported(program, tuple(inputs), tuple(outputs))


def behind(
    names: Iterable[str], makers: Mapping[str, _Node], reads: Callable[[_Node], Iterable[str]]
) -> set[str]:
    """All tensors that some depend on, with these themselves.

    makers  the nodes that compute tensors, by the tensors' names; others depend on nothing
    """
    seen: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in seen and name in makers:
            waiting += reads(makers[name])
        seen.add(name)
    return seen


def inputs_behind(graph: Graph, name: str) -> set[str]:
    """The graph's inputs on whose elements (not only shapes) a tensor's elements depend."""
    makers = {
        output: node
        for node in _all_nodes(graph)
        for output in node.outputs
        if node.operator not in ("Shape", "Size")
    }
    return behind([name], makers, lambda node: node.reads) & {value.name for value in graph.inputs}


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in node.graphs:
            yield from _all_nodes(inner)


def _identifiers(names: Sequence[str]) -> list[str]:
    """A distinct identifier for each name, similar to it."""
    taken = {*keyword.kwlist}
    identifiers = []
    for name in names:
        identifiers.append(unused(identifier(name), taken))
        taken.add(identifiers[-1])
    return identifiers


@dataclass(frozen=True, slots=True)
class _Scope:
    """The values of names in a graph, and in the graphs around it; the other fields are as in `Call`."""

    values: ChainMap[str, Held]
    late: frozenset[str]
    turns: int
    unrolled: set[int]


def _build(graph: Graph, scope: _Scope) -> None:
    """Build a graph's nodes; its inputs are in the scope already."""
    scope.values.update(graph.constants)
    for node in graph.needed:
        outputs = _built(node, scope)
        for name, tensor in zip(node.outputs, outputs, strict=False):
            if name and tensor is not None:
                scope.values[name] = tensor
        for name in node.outputs[len(outputs) :]:
            if name:
                raise node.error(f"taskc doesn't compute its output '{name}'")


def _built(node: Node, scope: _Scope) -> tuple[Held | None, ...]:
    def inline(
        graph: Graph, given: Sequence[Tensor], turns: int = 1, late: frozenset[str] = frozenset()
    ) -> tuple[Tensor, ...]:
        names = [value.name for value in graph.inputs]
        values: dict[str, Held] = dict(zip(names, given, strict=True))
        inner = _Scope(
            scope.values.new_child(values), scope.late | late, scope.turns * turns, scope.unrolled
        )
        _build(graph, inner)
        _check_counts(node, graph.outputs, inner)
        made = [inner.values[name] for name in graph.outputs]
        if node.operator == "Loop" and isinstance(goes_on := made[0], Loose):
            made[0] = goes_on.handle  # a reader needs only its element
        return tuple(map(rows_of, made))

    _check_counts(node, node.reads, scope)
    # Bodies' captured tensors are computed here: within a body they would be computed only if it runs.
    for name in {name for inner in node.graphs for name in inner.captured}:
        if not isinstance(scope.values[name], Loose):
            rows_of(scope.values[name])
    inputs = tuple([scope.values[name] if name else None for name in node.inputs])
    return built(Call(node, inputs, inline, False, scope.late, scope.turns, scope.unrolled))


def _check_counts(node: Node, names: Iterable[str], scope: _Scope) -> None:
    """Raise an error where a node reads a tensor with an unknown number of elements."""
    for name in names:
        if isinstance(scope.values[name], Counted):
            error = CountError(
                f"{node.title}: how many elements '{name}' has is known only when the model runs",
                node.where,
            )
            error.names = (name,)
            raise error
