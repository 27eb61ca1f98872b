"""Precision that a user asks for: exact sums, or operands of a shorter type.

exact_sums: convolutions add up their products one by one, without Winograd's algorithm.

    y = Conv(x, w)     ->     y = Conv(x, w, exact=1)

By default 3 x 3 convolutions may use Winograd's algorithm where it is faster: it needs fewer products, and rounds
differently.

low_precision: round both operands of products with weights to a shorter type, and sum in f32.

    y = MatMul(x, w)     ->     y = MatMul(x, w, operands='bf16')

Everything else is unchanged: products of two activations (attention's), convolutions, recurrences, and models of types
other than f32. This pass runs only if `precision` is set; `taskc verify --precision` measures its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskc.ir.types import DType
from taskc.operators.graph import Graph, Node


def exact_sums(graph: Graph) -> Graph:
    nodes = [
        replace(node, attributes={**node.attributes, "exact": 1})
        if node.operator == "Conv" and not node.domain
        else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


_PRODUCTS = frozenset({"MatMul", "Gemm"})


def low_precision(operands: DType) -> Callable[[Graph], Graph]:
    """The pass for a type of operands."""

    def marked(node: Node) -> Node:
        if node.domain or node.operator not in _PRODUCTS:
            return node
        return replace(node, attributes={**node.attributes, "operands": operands.name})

    def low_precision(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(map(marked, graph.nodes)))

    return low_precision
