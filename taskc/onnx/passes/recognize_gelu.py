"""recognize_gelu: replace nodes whose formula is a Gelu's by one node.

    a = Div(x, 1.4142135)
    b = Erf(a)
    c = Add(b, 1.0)          ->     y = Gelu(x, approximate='none')
    d = Mul(x, c)
    y = Mul(d, 0.5)

With a tanh it is Gelu(x, approximate='tanh'). However the model writes the formula, the products are computed in Gelu's
order.
"""

from __future__ import annotations

import math
from dataclasses import replace

from taskc.onnx.passes.formulas import (
    Formula,
    Formulas,
    number,
    plus,
    replaced,
    same,
    times,
)
from taskc.operators.graph import Graph, Node

_APPROXIMATIONS = {"Erf": "none", "Tanh": "tanh"}


def recognize_gelu(graph: Graph) -> Graph:
    formulas = Formulas(graph)
    return replace(graph, nodes=tuple([_recognized(formulas, node) for node in graph.nodes]))


def _recognized(formulas: Formulas, node: Node) -> Node:
    if node.domain or node.operator not in ("Mul", "Div"):
        return node
    cone = formulas.cone(node.outputs[0])
    functions = {inner.operator for inner in cone} & _APPROXIMATIONS.keys()
    for x in dict.fromkeys(name for inner in cone for name in inner.inputs) if functions else ():
        formula = formulas.of(node.outputs[0], x)
        for function in functions:
            if formulas.keeps_shape(cone, x) and same(formula, _gelu(formulas, function, x)):
                way = _APPROXIMATIONS[function]
                return replaced(node, "Gelu", (x,), version=20, approximate=way)
    return node


def _gelu(formulas: Formulas, function: str, name: str) -> Formula:
    """x / 2 * (1 + erf(x / sqrt(2))), or its approximation."""
    x = formulas.tensor(name)
    if function == "Erf":
        inner = times(x, number(math.sqrt(0.5)))
    else:
        cube = times(x, times(x, x))
        sums = plus(x, times(cube, number(0.044715)))
        inner = times(sums, number(math.sqrt(2 / math.pi)))
    half = times(x, number(0.5))
    return plus(half, times(half, formulas.function(function, inner)))
