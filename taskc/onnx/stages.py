"""A graph as two: first what a tensor depends on, and the rest once it is known what that tensor is.

    x -> NonZero -> n -> Gather -> y        x -> NonZero -> n        x, n -> Gather -> y

Where something is compiled by the elements of a tensor, or by how many it has, it must be known what they are. So a
graph is cut there, each part runs as a model does, and the second takes as inputs what the first has made.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.operators.graph import Graph, Node, Value


def cut_at(graph: Graph, name: str) -> tuple[Graph, ...]:
    """What makes a tensor, and what is left; nothing where no node of the graph itself makes it."""
    before = _behind(graph, name)
    if not before:
        return ()
    ahead = tuple([node for node in graph.nodes if node not in before])
    made = {output for node in before for output in node.outputs}
    wanted = {*graph.outputs}.union(*(node.reads for node in ahead))
    handed = tuple([output for output in sorted(made & wanted) if output])
    inputs = tuple([value for value in graph.inputs if value.name in wanted])
    values = tuple([graph.values.get(output) or Value(output) for output in handed])
    first = replace(graph, outputs=handed, nodes=tuple([n for n in graph.nodes if n in before]))
    return first, replace(graph, inputs=(*inputs, *values), nodes=ahead)


def _behind(graph: Graph, name: str) -> set[Node]:
    """The nodes that a tensor depends on."""
    makers = {output: node for node in graph.nodes for output in node.outputs if output}
    found: set[Node] = set()
    waiting = [name]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node not in found:
            found.add(node)
            waiting += node.reads
    return found
