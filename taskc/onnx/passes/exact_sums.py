"""exact_sums: convolutions add up their products one by one, without Winograd's algorithm.

    y = Conv(x, w)     ->     y = Conv(x, w, exact=1)

By default 3 x 3 convolutions may use Winograd's algorithm where it is faster: it needs fewer products, and rounds
differently.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.operators.graph import Graph


def exact_sums(graph: Graph) -> Graph:
    nodes = [
        replace(node, attributes={**node.attributes, "exact": 1})
        if node.operator == "Conv" and not node.domain
        else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))
