"""exact_sums: convolutions add up their products one by one, and take no sums of sums.

    y = Conv(x, w)     ->     y = Conv(x, w, exact=1)

By default 3 x 3 convolutions may be Winograd's where these are faster: they need fewer products, and round differently.
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
