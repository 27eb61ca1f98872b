"""Graphs in stages: a tensor on which compilation depends, by its elements or their number, is computed first.

    x -> NonZero -> n -> Gather -> y        x -> NonZero -> n        x, n -> Gather -> y

The graph is cut there. Each stage has programs of its own, and a later one takes the results of earlier ones as inputs.

In the body of a Loop, the tensor differs from turn to turn. So the graph is cut around the Loop. Its body has programs
of its own, which are called for each turn; likewise the branches of an If.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from taskc.onnx.importer import Imported, behind
from taskc.onnx.model import Place, Programs, ProgramSource
from taskc.onnx.versions import MAX_SETS, Kind
from taskc.operators.call import CountError, DataError
from taskc.operators.graph import Array, Graph, Node, Value
from taskc.runtime.machine import built_for
from taskc.runtime.served import Arrays, Runnable, keep, on_host

if TYPE_CHECKING:
    from taskc.onnx.states import States


class Stage(Protocol):
    """One stage, from arrays by the names of `inputs` to those of `outputs`, in order.

    all  its programs that are still kept
    """

    @property
    def inputs(self) -> Sequence[str]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    def run(self, arrays: Mapping[str, Any]) -> list[Any]: ...
    def all(self) -> tuple[Runnable, ...]: ...


class Staged(ProgramSource):
    """A graph that runs in stages, or may come to: a subclass makes them."""

    def __init__(self, outputs: Sequence[str], stages: Sequence[Stage] = ()) -> None:
        self._outputs = outputs
        self._stages = tuple(stages)
        self.is_staged = bool(stages)

    def run(self, arrays: Mapping[str, Any]) -> list[Any]:
        known = {**arrays}
        for stage in self._stages:
            results = stage.run({name: known[name] for name in stage.inputs})
            known.update(zip(stage.outputs, results, strict=True))
        return [known[name] for name in self._outputs]

    def staged(self) -> tuple[Runnable, ...]:
        return tuple([program for stage in self._stages for program in stage.all()])


class Traced(Staged):
    """Programs traced from a graph, which is cut into stages where it has to be.

    read    the graph before it was rewritten
    states  of a session, whose programs write them in place
    """

    def __init__(
        self, graph: Graph, place: Place, read: Graph | None = None, states: States | None = None
    ) -> None:
        super().__init__(graph.outputs)
        self.rewritten = graph
        self._states = states
        self._place = place
        self._read = read or graph
        self._kinds: dict[tuple[object, ...], Kind] = {}

    @property
    def graph(self) -> Graph:
        return self._read

    def find(self, arrays: Arrays, *, is_traced: bool) -> Imported | None:
        if self.is_staged:
            return None
        try:
            return self.traced(arrays)
        except (CountError, DataError) as error:
            if self._states is not None:
                raise
            self._stages = self._cut(error.names)
            if not self._stages:
                raise
            self.is_staged = True
            return None

    def traced(self, arrays: Arrays) -> Imported:
        key = tuple([(array.dtype, array.ndim) for array in arrays.values()])
        kind = self._kinds.get(key) or Kind(self.rewritten, states=self._states)
        keep(self._kinds, key, kind, MAX_SETS)
        with built_for(self._place.machine):
            return kind.program(arrays)

    def _cut(self, names: Iterable[str]) -> tuple[Stage, ...]:
        """The stages in which one of these tensors is known before it is needed; none if there are no such."""
        cuts = (cut(self.rewritten, name) for cut in (_cut_at, _cut_around) for name in names)
        match next(filter(None, cuts), ()):
            case first, rest:
                return _stage(first, self._place), _stage(rest, self._place)
            case first, node, rest:
                before = [_stage(first, self._place)] if first.nodes else []
                return *before, _Control(node, self._place), _stage(rest, self._place)
        return ()


def _stage(graph: Graph, place: Place) -> Programs:
    names = [value.name for value in graph.inputs]
    return Programs(names, graph.outputs, Traced(graph, place), place)


class _Control:
    """The stage of an If or Loop whose bodies have programs of their own: Python chooses a branch, or counts turns.

    So the results of branches and turns may have any shape and rank, and the number of turns may be any.
    """

    def __init__(self, graph: Graph, place: Place) -> None:
        self.inputs = [value.name for value in graph.inputs]
        self.outputs = graph.outputs
        self._constants = graph.constants
        (self._node,) = graph.nodes
        self._bodies: dict[str, Programs] = {}
        for name, body in self._node.attributes.items():
            if isinstance(body, Graph):
                reads = dict.fromkeys([*(value.name for value in body.inputs), *body.captured])
                constants = {
                    read: graph.constants[read] for read in reads if read in graph.constants
                }
                inputs = tuple([Value(read) for read in reads if read not in constants])
                body = replace(body, inputs=inputs, constants=body.constants | constants)
                self._bodies[name] = _stage(body, place)

    def run(self, arrays: Mapping[str, Any]) -> list[Array]:
        known = {**self._constants, **arrays}
        inputs = [known[name] if name else None for name in self._node.inputs]
        if self._node.operator == "If":
            results = self._run("then_branch" if _element(inputs[0]) else "else_branch", known)
        else:
            results = self._turns(known, *inputs)
        named = dict(zip(self._node.outputs, results, strict=False))
        return [named[name] for name in self.outputs]

    def all(self) -> tuple[Runnable, ...]:
        return tuple([program for body in self._bodies.values() for program in body.all()])

    def _run(self, name: str, known: Mapping[str, Any]) -> list[Array]:
        body = self._bodies[name]
        return body.run({read: known[read] for read in body.inputs})

    def _turns(
        self, known: Mapping[str, Any], most: Any = None, goes_on: Any = None, *state: Any
    ) -> list[Array]:
        from taskc.operators.control import NO_STEPS, UNLIKE_STEPS  # few models have loops

        names = [value.name for value in next(self._node.graphs).inputs]
        parts: list[list[Any]] = []
        while (most is None or len(parts) < _element(most)) and (
            goes_on is None or _element(goes_on)
        ):
            turn = np.array(len(parts), np.int64), np.array(True), *state
            goes_on, *results = self._run("body", {**known, **dict(zip(names, turn, strict=True))})
            state = (*results[: len(state)],)
            parts.append([*map(on_host, results[len(state) :])])
        stacked = self._node.outputs[len(state) :]
        if any(stacked) and not parts:
            raise self._node.error(NO_STEPS)
        try:
            return [*state, *map(np.stack, zip(*parts, strict=True))]
        except ValueError:
            raise self._node.error(UNLIKE_STEPS) from None


def _element(array: Any) -> Any:
    return on_host(array).reshape(-1)[0]


# --- Cuts of a graph ----------------------------------------------------------------------------


def _cut_at(graph: Graph, name: str) -> tuple[Graph, ...]:
    """The part that computes a tensor, and the rest; empty where no node of the graph itself computes it."""
    before = _dependencies(graph, [name])
    return _split(graph, before) if before else ()


def _cut_around(graph: Graph, name: str) -> tuple[Graph, ...]:
    """The part before an If or Loop whose graphs compute a tensor, that node alone, and the rest; or empty."""
    for node in graph.nodes:
        if node.operator in ("If", "Loop") and name in _within(node):
            before, rest_graph = _split(graph, _dependencies(graph, node.reads))
            return before, *_split(rest_graph, {node})
    return ()


def _split(graph: Graph, before: set[Node]) -> tuple[Graph, Graph]:
    later = tuple([node for node in graph.nodes if node not in before])
    outputs = {output for node in before for output in node.outputs}
    wanted = {*graph.outputs}.union(*(node.reads for node in later))
    handed = tuple([output for output in sorted(outputs & wanted) if output])
    inputs = tuple([value for value in graph.inputs if value.name in wanted])
    values = tuple([graph.values.get(output) or Value(output) for output in handed])
    before_graph = replace(
        graph, outputs=handed, nodes=tuple([n for n in graph.nodes if n in before])
    )
    return before_graph, replace(graph, inputs=(*inputs, *values), nodes=later)


def _dependencies(graph: Graph, names: Iterable[str]) -> set[Node]:
    """The nodes that tensors depend on."""
    makers = {output: node for node in graph.nodes for output in node.outputs if output}
    needed = behind(names, makers, lambda node: node.reads)
    return {makers[name] for name in needed if name in makers}


def _within(node: Node) -> Iterator[str]:
    """The names of inputs and outputs in the graphs of a node's attributes, at any depth."""
    for graph in node.graphs:
        yield from (value.name for value in graph.inputs)
        for inner in graph.nodes:
            yield from inner.outputs
            yield from _within(inner)
