"""Recognize Gelu and norms by their formulas, and compute each by one operator.

recognize_gelu: replace nodes whose formula is a Gelu's by one node.

    a = Div(x, 1.4142135)
    b = Erf(a)
    c = Add(b, 1.0)          ->     y = Gelu(x, approximate='none')
    d = Mul(x, c)
    y = Mul(d, 0.5)

With a tanh it is Gelu(x, approximate='tanh'). However the model writes the formula, the products are computed in Gelu's
order.

recognize_norms: replace nodes whose formula is that of a layer norm or an RMS norm by one node.

    m = ReduceMean(x, axes=[-1])
    d = Sub(x, m)
    v = ReduceMean(Mul(d, d), axes=[-1])
    s = Sqrt(Add(v, 1e-5))                     ->     y = LayerNormalization(x, w, b, axis=-1, epsilon=1e-05)
    n = Div(d, s)
    y = Add(Mul(n, w), b)

Without a subtracted mean it is RMSNormalization(x, w). The scale and the shift are constants that follow directly;
either may be missing. Sums are added up in the order of those operators.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from taskc.onnx.passes.formulas import (
    Formula,
    Formulas,
    Rewriting,
    Tensors,
    last_axes,
    mean_over,
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
            if formulas.keeps_shape(node.outputs[0], x) and same(
                formula, _gelu(formulas, function, x)
            ):
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


def recognize_norms(graph: Graph) -> Graph:
    rewriting, formulas = Rewriting(graph), Formulas(graph)
    norms: dict[str, Node] = {}
    for node in graph.nodes:
        norm = _norm(rewriting, formulas, node)
        if norm is not None:
            norms[norm.outputs[0]] = norm
    rewriting.nodes = [norms.get(node.outputs[0], node) for node in graph.nodes]
    return rewriting.graph


def _norm(made: Rewriting, formulas: Formulas, node: Node) -> Node | None:
    """The norm whose quotient a node computes, in place of the last node that belongs to it."""
    if node.domain or node.operator not in ("Mul", "Div"):
        return None
    cone, tensors = formulas.cone(node.outputs[0]), made.tensors
    means = [inner for inner in cone if inner.operator == "ReduceMean"]
    axes = last_axes(tensors.graph, means[0]) if means else 0
    if not axes or len(means) > 2:
        return None
    names = dict.fromkeys(name for inner in cone for name in inner.inputs)
    numbers = {name: number for name in names if (number := tensors.number(name)) is not None}
    # A layer norm is also an RMS norm, of x less its mean, so it is tried first.
    for operator in ("LayerNormalization", "RMSNormalization"):
        for x in names:
            quotient = formulas.of(node.outputs[0], x)
            for name, epsilon in numbers.items():
                if same(quotient, _quotient(formulas, operator, x, axes, epsilon)):
                    dtype = tensors.graph.constants[name].dtype
                    return _scaled(made, node, operator, x, axes, epsilon, dtype)
    return None


def _quotient(formulas: Formulas, operator: str, name: str, axes: int, epsilon: float) -> Formula:
    """d / sqrt(mean(d * d) + epsilon), where d is x less its mean, or x."""
    x, mean = formulas.tensor(name), mean_over(axes)
    d = x
    if operator == "LayerNormalization":
        d = plus(x, times(formulas.function(mean, x), number(-1)))
    spread = plus(formulas.function(mean, times(d, d)), number(epsilon))
    return times(d, formulas.inverse(formulas.function("Sqrt", spread)))


def _scaled(
    made: Rewriting,
    node: Node,
    operator: str,
    x: str,
    axes: int,
    epsilon: float,
    dtype: np.dtype[Any],
) -> Node:
    tensors, last = made.tensors, node
    scale = _constant_of(tensors, last, "Mul", axes)
    if scale is not None:
        last, weights = scale
    else:
        weights = made.constant(f"{node.outputs[0]}/one", np.ones(1, dtype))
    inputs = [x, weights]
    shift = _constant_of(tensors, last, "Add", axes) if operator == "LayerNormalization" else None
    if shift is not None:
        last, offset = shift
        inputs.append(offset)
    version = 17 if operator == "LayerNormalization" else 23
    return replaced(last, operator, inputs, version=version, axis=-axes, epsilon=epsilon)


def _constant_of(tensors: Tensors, node: Node, operator: str, axes: int) -> tuple[Node, str] | None:
    """The only reader of a node's result, if it combines it with a constant of the last axes; and that constant."""
    reader = tensors.only_reader(node.outputs[0])
    if reader is None or reader.domain or reader.operator != operator:
        return None
    for name in reader.inputs:
        array = tensors.array(name)
        if array is not None and array.ndim <= axes:
            return reader, name
    return None
