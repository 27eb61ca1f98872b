"""A graph as two: first what a tensor depends on, and the rest once it is known what that tensor is.

    x -> NonZero -> n -> Gather -> y        x -> NonZero -> n        x, n -> Gather -> y

Where something is compiled by the elements of a tensor, or by how many it has, it must be known what they are. So a
graph is cut there, each part runs as a model does, and the second takes as inputs what the first has made.

Within the body of a Loop it is another tensor each turn. So the graph is cut around the Loop, whose body is a model
of its own that is called for each turn; branches of an If likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from taskc.operators.graph import Graph, Node, Value


def cut_at(graph: Graph, name: str) -> tuple[Graph, ...]:
    """What makes a tensor, and what is left; nothing where no node of the graph itself makes it."""
    before = _behind(graph, [name])
    return _halves(graph, before) if before else ()


def cut_around(graph: Graph, name: str) -> tuple[Graph, ...]:
    """What an If or a Loop needs in whose graphs a tensor is made, that node alone, and what is left; or nothing."""
    for node in graph.nodes:
        if node.operator in ("If", "Loop") and name in _within(node):
            before, rest = _halves(graph, _behind(graph, node.reads))
            return before, *_halves(rest, {node})
    return ()


def _halves(graph: Graph, before: set[Node]) -> tuple[Graph, Graph]:
    ahead = tuple([node for node in graph.nodes if node not in before])
    made = {output for node in before for output in node.outputs}
    wanted = {*graph.outputs}.union(*(node.reads for node in ahead))
    handed = tuple([output for output in sorted(made & wanted) if output])
    inputs = tuple([value for value in graph.inputs if value.name in wanted])
    values = tuple([graph.values.get(output) or Value(output) for output in handed])
    first = replace(graph, outputs=handed, nodes=tuple([n for n in graph.nodes if n in before]))
    return first, replace(graph, inputs=(*inputs, *values), nodes=ahead)


def _behind(graph: Graph, names: Iterable[str]) -> set[Node]:
    """The nodes that tensors depend on."""
    makers = {output: node for node in graph.nodes for output in node.outputs if output}
    found: set[Node] = set()
    waiting = [*names]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node not in found:
            found.add(node)
            waiting += node.reads
    return found


def _within(node: Node) -> Iterator[str]:
    """The names of what the graphs in a node's attributes are given and make, at any depth."""
    for graph in node.graphs:
        yield from (value.name for value in graph.inputs)
        for inner in graph.nodes:
            yield from inner.outputs
            yield from _within(inner)
