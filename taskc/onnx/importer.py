"""A graph becomes a program: its nodes are built in order while the program is traced.

What the model and the shapes of its inputs tell is known then: shape arithmetic is done by Python, and what else
depends on nothing but constants is computed once, by a program of its own.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import taskc as tc
from taskc import ProgramDefinition, TensorType
from taskc.errors import NOWHERE
from taskc.ir.text_rules import identifier
from taskc.lang.assumptions import Assumptions
from taskc.lang.source import called_from
from taskc.lang.tracing import TensorHandle
from taskc.operators.build import built, returned
from taskc.operators.call import (
    Call,
    Counted,
    CountError,
    Held,
    Loose,
    Tensor,
    UnrolledError,
    builder_of,
    rows_of,
)
from taskc.operators.graph import Array, Graph, Node
from taskc.operators.results import Output


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
            outputs.append(returned(scope.find(output), name, count, made))
        return made

    kinds = dict(zip(names, inputs.values(), strict=False))
    with called_from(NOWHERE):
        name = identifier(graph.name or "model")
        while True:
            with suppress(UnrolledError):
                program = tc.trace(name, kinds, body, assumptions=assumptions)
                return Imported(program, tuple(inputs), tuple(outputs))


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
    inputs = tuple([scope.find(name) if name else None for name in node.inputs])
    return built(Call(node, inputs, inline, False, scope.late, scope.turns, scope.unrolled))


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
