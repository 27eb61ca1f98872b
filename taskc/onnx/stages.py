"""Graphs in stages: a tensor on which compilation depends, by its elements or their number, is computed first.

    x -> NonZero -> n -> Gather -> y        x -> NonZero -> n        x, n -> Gather -> y

The graph is cut there. Each stage has programs of its own, and a later one takes the results of earlier ones as inputs.

In the body of a Loop, the tensor differs from turn to turn. So the graph is cut around the Loop. Its body has programs
of its own, which are called for each turn; likewise the branches of an If.

Nodes with strings, sequences or optional values are stages that Python runs (hosted.py).

    s -> SequenceAt -> x -> Relu -> y                   Python: s -> SequenceAt -> x         x -> Relu -> y
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from taskc.errors import CheckError, CompileError, InternalError
from taskc.onnx.foreign import is_tensor
from taskc.onnx.hosted import MOVES, function_of, makes_foreign, widened
from taskc.onnx.importer import Imported, behind
from taskc.onnx.model import Computed, Place, Programs, ProgramSource
from taskc.onnx.versions import MAX_SETS, Kind
from taskc.operators.call import CountError, DataError
from taskc.operators.files import HOSTED
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
    def trace(self, arrays: Mapping[str, Any], computed: Computed) -> None: ...
    def all(self) -> tuple[Runnable, ...]: ...


class Staged(ProgramSource):
    """A graph that runs in stages, or may come to: a subclass makes them."""

    def __init__(self, outputs: Sequence[str], stages: Sequence[Stage] = ()) -> None:
        self._outputs = outputs
        # By the names of inputs that aren't tensors.
        self._stages: dict[frozenset[str], tuple[Stage, ...]] = {}
        if stages:
            self._stages[_NONE] = tuple(stages)
        self.is_staged = bool(stages)

    def run(self, arrays: Mapping[str, Any]) -> list[Any]:
        known = {**arrays}
        for stage in self._stages_for(arrays):
            results = stage.run({name: known[name] for name in stage.inputs})
            known.update(zip(stage.outputs, results, strict=True))
        return [known[name] if name in known else self._constant(name) for name in self._outputs]

    def trace(self, arrays: Mapping[str, Any], computed: Computed) -> None:
        known = {**arrays}
        for stage in self._stages_for(arrays):
            if not known.keys() >= {*stage.inputs}:
                return
            stage.trace({name: known[name] for name in stage.inputs}, computed)
            known.update(zip(stage.outputs, computed(stage.outputs), strict=False))

    def staged(self) -> tuple[Runnable, ...]:
        stages = [stage for stages in [*self._stages.values()] for stage in stages]
        return tuple([program for stage in stages for program in stage.all()])

    def _stages_for(self, arrays: Mapping[str, Any]) -> tuple[Stage, ...]:
        return self._stages[_NONE]

    def _constant(self, name: str) -> Array:
        raise InternalError(f"no stage makes '{name}'")


_NONE: frozenset[str] = frozenset()


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
        self.states = states
        self._place = place
        self._read = read or graph
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._foreign = {name for name, one in graph.constants.items() if one.dtype == object}
        self.is_staged = self._has_hosted = _has_hosted(graph, self._foreign)

    @property
    def graph(self) -> Graph:
        return self._read

    @property
    def ends(self) -> tuple[str, Sequence[Value], Sequence[Value]]:
        """The name of the graph, and a model's inputs and outputs."""
        graph, states = self._read, self.states
        if states is None:
            return graph.name, graph.inputs, graph.returned
        return graph.name, states.of_inputs(self.rewritten), states.of_outputs(self.rewritten)

    def with_states(self, states: States) -> Traced:
        """The same graph with states, and the position as an input."""
        inputs = (states.position, *self.rewritten.inputs)
        return Traced(replace(self.rewritten, inputs=inputs), self._place, self._read, states)

    def find(self, arrays: Arrays, *, is_traced: bool) -> Imported | None:
        if self.is_staged:
            return None
        try:
            return self.traced(arrays)
        except (CountError, DataError) as error:
            if self.states is not None:
                raise
            stages = self._cut(error.names)
            if not stages:
                raise
            self._stages[_NONE] = stages
            self.is_staged = True
            return None

    def traced(self, arrays: Arrays) -> Imported:
        if self._has_hosted or not all(map(is_tensor, arrays.values())):
            raise CompileError(
                "the model isn't one program: Python runs a part of it",
                hint="calls run it in parts",
            )
        key = tuple([(array.dtype, array.ndim) for array in arrays.values()])
        kind = self._kinds.get(key) or Kind(self.rewritten, states=self.states)
        keep(self._kinds, key, kind, MAX_SETS)
        with built_for(self._place.machine):
            return kind.program(arrays)

    def _cut(self, names: Iterable[str]) -> tuple[Stage, ...]:
        """The stages in which one of these tensors is known before it is needed; none if there are no such."""
        cuts = (cut(self.rewritten, name) for cut in (_cut_at, _cut_around) for name in names)
        return self._made(next(filter(None, cuts), ()))

    def _stages_for(self, arrays: Mapping[str, Any]) -> tuple[Stage, ...]:
        foreign = frozenset([name for name, value in arrays.items() if not is_tensor(value)])
        if foreign not in self._stages:
            self._stages[foreign] = self._made(
                _cut_for_host(self.rewritten, self._foreign | foreign)
            )
        return self._stages[foreign]

    def _made(self, groups: Sequence[Group]) -> tuple[Stage, ...]:
        wanted = {*self._outputs}
        stages: list[Stage] = []
        for group in reversed(groups):
            nodes = (group,) if isinstance(group, Node) else group
            part = _part(self.rewritten, nodes, wanted)
            wanted.update(*[node.reads for node in nodes])
            if isinstance(group, Node):
                stages.append(_Hosted(part, self._place))
            elif nodes:
                stages.append(_stage(part, self._place))
        return tuple(stages[::-1])

    def _constant(self, name: str) -> Array:
        constant: Array = self.rewritten.constants[name].copy()
        return constant


def _stage(graph: Graph, place: Place) -> Programs:
    names = [value.name for value in graph.inputs]
    return Programs(names, graph.outputs, Traced(graph, place), place)


class _Hosted:
    """The stage of a node that Python runs; its graphs have programs of their own.

    Of an If, Loop or Scan, Python chooses the branch, or counts turns. So the results of branches and turns may have
    any shape and rank, and the number of turns may be any. Other nodes are functions of hosted.py. A node without one
    reads foreign values: tensors of rare types are widened, and where elements are only moved, a program moves their
    positions.
    """

    def __init__(self, graph: Graph, place: Place) -> None:
        self.inputs = [value.name for value in graph.inputs]
        self.outputs = graph.outputs
        self._graph = graph
        self._place = place
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

    def run(self, arrays: Mapping[str, Any]) -> list[Any]:
        node, known = self._node, {**self._graph.constants, **arrays}
        inputs = [known[name] if name else None for name in node.inputs]
        match node.operator:
            case "If":
                branch = "then_branch" if _element(inputs[0]) else "else_branch"
                results: Any = self._run(branch, known)
            case "Loop":
                results = self._turns(known, *inputs)
            case "Scan":
                results = self._scanned(known, inputs)
            case "SequenceMap":
                results = self._mapped(known, inputs)
            case _:
                results = self._result(inputs)
        named = dict(zip(node.outputs, results, strict=False))
        return [named[name] for name in self.outputs]

    def trace(self, arrays: Mapping[str, Any], computed: Computed) -> None:
        pass  # a body's inputs differ from turn to turn

    def all(self) -> tuple[Runnable, ...]:
        return tuple([program for body in self._bodies.values() for program in body.all()])

    def _result(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of a node without graphs."""
        node, first = self._node, inputs[0] if inputs else None
        function = function_of(node)
        if function is not None:
            given = [on_host(value) if is_tensor(value) else value for value in inputs]
            try:
                results = function(node, *given)
            except (IndexError, ValueError) as error:
                raise node.error(f"Python can't compute it: {error}") from error
            return results if isinstance(results, tuple) else (results,)
        if node.operator in MOVES and isinstance(first, np.ndarray):
            places = np.arange(first.size).reshape(first.shape)
            moved = self._as_program([places, *inputs[1:]])
            if node.operator in ("Shape", "Size"):
                return moved
            return [first.reshape(-1)[on_host(one)] for one in moved]
        wide = [widened(value) for value in inputs]
        for name, value in zip(node.inputs, wide, strict=True):
            if name and not is_tensor(value):
                kind = type(value).__name__ if not isinstance(value, np.ndarray) else "strings"
                raise node.error(f"its input '{name}' is no tensor of numbers, but {kind}")
        return self._as_program(wide)

    def _as_program(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of the node's program for other inputs."""
        programs = self._bodies.get("") or _stage(
            replace(
                self._graph,
                inputs=tuple([Value(name) for name in dict.fromkeys(self._node.inputs) if name]),
                constants={},
                outputs=tuple(filter(None, self._node.outputs)),
            ),
            self._place,
        )
        self._bodies[""] = programs
        given = dict(zip(self._node.inputs, inputs, strict=True))
        results = programs.run({name: given[name] for name in programs.inputs})
        named = dict(zip(programs.outputs, results, strict=True))
        return [named.get(name) for name in self._node.outputs]

    def _run(self, name: str, known: Mapping[str, Any]) -> list[Any]:
        body = self._bodies[name]
        return body.run({read: known[read] for read in body.inputs})

    def _mapped(self, known: Mapping[str, Any], inputs: Sequence[Any]) -> list[list[Any]]:
        """The body's outputs for each element of a sequence, as sequences, which the host has."""
        names = [value.name for value in next(self._node.graphs).inputs]
        results = [
            self._run("body", {**known, **dict(zip(names, elements, strict=True))})
            for elements in zip(
                *[one if isinstance(one, list) else [one] * len(inputs[0]) for one in inputs],
                strict=True,
            )
        ]
        places = range(len(self._node.outputs))
        return [[on_host(one[place]) for one in results] for place in places]

    def _turns(
        self, known: Mapping[str, Any], most: Any = None, goes_on: Any = None, *state: Any
    ) -> list[Array]:
        from taskc.operators.control import NO_STEPS  # few models have loops

        names = [value.name for value in next(self._node.graphs).inputs]
        parts: list[list[Any]] = []
        while (most is None or len(parts) < _element(most)) and (
            goes_on is None or _element(goes_on)
        ):
            turn = np.array(len(parts), np.int64), np.array(True), *state
            goes_on, *results = self._run("body", {**known, **dict(zip(names, turn, strict=True))})
            state = (*results[: len(state)],)
            parts.append([*map(on_host, results[len(state) :])])
        if any(self._node.outputs[len(state) :]) and not parts:
            turn = np.array(0, np.int64), np.array(True), *state
            try:  # for the types that a turn would have made
                made = self._run("body", {**known, **dict(zip(names, turn, strict=True))})
            except (CompileError, CheckError) as error:
                raise self._node.error(NO_STEPS) from error
            kinds = map(on_host, made[1 + len(state) :])
            return [*state, *[np.zeros((0, *one.shape), one.dtype) for one in kinds]]
        return [*state, *[self._stacked(part) for part in zip(*parts, strict=True)]]

    def _stacked(self, parts: Sequence[Array], axis: int = 0) -> Array:
        from taskc.operators.control import UNLIKE_STEPS

        try:
            return np.stack(parts, axis)
        except ValueError:
            raise self._node.error(UNLIKE_STEPS) from None

    def _scanned(self, known: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
        """The final state, and the parts that the steps made, stacked."""
        from taskc.operators.control import NO_STEPS

        node = self._node
        names = [value.name for value in next(node.graphs).inputs]
        count: Any = node.attributes["num_scan_inputs"]
        state, scanned = [*inputs[:-count]], [*map(on_host, inputs[-count:])]

        def ways(name: str, number: int) -> Any:
            return node.attributes.get(f"scan_{name}") or [0] * number

        read = [
            np.moveaxis(x, axis, 0)[:: -1 if back else 1]
            for x, axis, back in zip(
                scanned, ways("input_axes", count), ways("input_directions", count), strict=True
            )
        ]
        parts: list[list[Any]] = []
        for step in zip(*read, strict=True):
            given = dict(zip(names, [*state, *map(np.ascontiguousarray, step)], strict=True))
            results = self._run("body", {**known, **given})
            state = results[: len(state)]
            parts.append([*map(on_host, results[len(state) :])])
        if any(node.outputs[len(state) :]) and not parts:
            raise node.error(NO_STEPS)
        made = [*zip(*parts, strict=True)]
        outputs = len(made)
        return [
            *state,
            *[
                self._stacked(part[:: -1 if back else 1], axis)
                for part, axis, back in zip(
                    made,
                    ways("output_axes", outputs),
                    ways("output_directions", outputs),
                    strict=True,
                )
            ],
        ]


def _element(array: Any) -> Any:
    return on_host(array).reshape(-1)[0]


# --- Cuts of a graph ----------------------------------------------------------------------------


Group: TypeAlias = Node | Sequence[Node]  # a node that Python runs, or the nodes of a program


def _cut_at(graph: Graph, name: str) -> Sequence[Group]:
    """The part that computes a tensor, and the rest; empty where no node of the graph itself computes it."""
    before = _dependencies(graph, [name])
    return (before, _others(graph, before)) if before else ()


def _cut_around(graph: Graph, name: str) -> Sequence[Group]:
    """The part before a node whose graphs compute a tensor, that node alone, and the rest; or empty."""
    for node in graph.nodes:
        is_of_batches = node.operator == "Scan" and node.version < 9
        if name in _within(node) and not is_of_batches:
            before = _dependencies(graph, node.reads)
            return before, node, _others(graph, [*before, node])
    return ()


def _cut_for_host(graph: Graph, foreign: Collection[str]) -> Sequence[Group]:
    """The part that needs no node that Python runs, the nodes that it surely runs next, and the rest.

    Which nodes of the rest read foreign values is known once those nodes have run.
    """
    groups: list[Node] = []
    before: list[Node] = []
    later: list[Node] = []
    by_host: set[str] = set()
    unknown: set[str] = set()
    for node in graph.needed:
        reads = {*node.reads}
        is_hosted = _is_hosted(node, graph, foreign)
        if reads & unknown or (reads & by_host and not is_hosted):
            later.append(node)
            unknown.update(node.outputs)
        elif is_hosted:
            groups.append(node)
            by_host.update(node.outputs)
        else:
            before.append(node)
    return before, *groups, later


def _has_hosted(graph: Graph, foreign: Collection[str] = ()) -> bool:
    return any(_is_hosted(node, graph, foreign) for node in graph.nodes)


def _is_hosted(node: Node, graph: Graph, foreign: Collection[str]) -> bool:
    """Whether Python runs a node of a graph, where these names aren't tensors."""
    return (
        (node.domain, node.operator) in HOSTED
        or any(name in foreign for name in node.reads)
        or makes_foreign(node, graph.constants)
        or any(map(_has_hosted, node.graphs))
    )


def _part(graph: Graph, nodes: Sequence[Node], wanted: Collection[str]) -> Graph:
    """The graph of some nodes, which returns those of their tensors that are wanted."""
    made = {name for node in nodes for name in node.outputs if name}
    reads = {name for node in nodes for name in node.reads} - made - graph.constants.keys()
    known = {value.name: value for value in graph.inputs}
    inputs = [value for name, value in known.items() if name in reads]
    inputs += [graph.values.get(name) or Value(name) for name in sorted(reads - known.keys())]
    outputs = tuple(sorted(made.intersection(wanted)))
    return replace(graph, inputs=tuple(inputs), outputs=outputs, nodes=tuple(nodes))


def _others(graph: Graph, nodes: Collection[Node]) -> list[Node]:
    return [node for node in graph.nodes if node not in nodes]


def _dependencies(graph: Graph, names: Iterable[str]) -> list[Node]:
    """The nodes that tensors depend on."""
    makers = {output: node for node in graph.nodes for output in node.outputs if output}
    needed = behind(names, makers, lambda node: node.reads)
    return [node for node in graph.nodes if needed.intersection(node.outputs)]


def _within(node: Node) -> Iterator[str]:
    """The names of inputs and outputs in the graphs of a node's attributes, at any depth."""
    for graph in node.graphs:
        yield from (value.name for value in graph.inputs)
        for inner in graph.nodes:
            yield from inner.outputs
            yield from _within(inner)
