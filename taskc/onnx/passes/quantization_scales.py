"""Divisions by the scales of quantization become factors that are there anyway.

    f = ScaledSums(..., s, t, b)             f = ScaledSums(..., s / u, t, b / u)
    a = DequantizeLinear(x, v, p)            a = DequantizeLinear(x, v / u, p)
    c = Add(f, a)                      ->    c = Add(f, a)
    r = Relu(c)                              r = Relu(c)
    y = QuantizeLinear(r, u, q)              y = QuantizeLinear(r, 1, q, factor=1)

A division takes as long as all other operations between two convolutions. Scales are constants, so the quotients are
computed when the model is compiled; ONNX Runtime requantizes sums by such factors, too. Where the factors of a tensor
aren't known, it is multiplied by 1 / u. A number that is halfway between two bytes may become the other one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from taskc.onnx.passes.formulas import Rewriting
from taskc.operators.graph import Graph, Node

# The number of inputs whose common positive factor is the result's, too; None for all.
_SCALED = {"Relu": None, "Add": None, "Sub": None, "Concat": None, "MaxPool": None, "Mul": 1}

_SCALE_OF_IMAGES, _BIAS = 4, 6  # inputs of ScaledSums


def quantization_scales(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        scale = _scale(rewriting, node)
        if scale is not None:
            x, factor = _divided(rewriting, node.inputs[0], scale), np.float32(1)
            if not x:
                x, factor = node.inputs[0], factor / scale
            name = rewriting.constant(f"{node.inputs[1]}/factor", factor)
            inputs, attributes = (x, name, *node.inputs[2:]), {**node.attributes, "factor": 1}
            node = replace(node, inputs=inputs, attributes=attributes)
        rewriting.nodes.append(node)
    return rewriting.graph


def _scale(rewriting: Rewriting, node: Node) -> np.float32 | None:
    """The scale of a QuantizeLinear if it is one normal f32 whose reciprocal is normal, too."""
    if node.domain or node.operator != "QuantizeLinear":
        return None
    scale = rewriting.tensors.array(node.inputs[1])
    if scale is None or scale.dtype != np.float32 or scale.size != 1 or scale.ndim > 1:
        return None
    number = np.float32(scale.reshape(()))
    return number if _are_normal(number, 1 / number) else None


def _are_normal(*numbers: Any) -> bool:
    limits = np.finfo(np.float32)
    return all(((limits.tiny <= n) & (n <= limits.max)).all() for n in numbers)


def _divided(rewriting: Rewriting, name: str, scale: np.float32) -> str:
    """Add nodes that compute a tensor divided by a scale; the quotient's name, or '' where a factor isn't known."""
    tensors, before = rewriting.tensors, len(rewriting.nodes)
    node, array = tensors.makers.get(name), tensors.array(name)
    if array is not None and array.dtype == np.float32:
        return rewriting.constant(f"{name}/scaled", np.asarray(array / scale))
    if node is None:
        return ""
    if (node.domain, node.operator) == ("", "DequantizeLinear"):
        return _with_scale(rewriting, node, scale, 1)
    if tensors.reads[name] != 1 or len(node.outputs) != 1:
        return ""
    if (node.domain, node.operator) == ("taskc", "ScaledSums"):
        return _with_scale(rewriting, node, scale, _SCALE_OF_IMAGES)
    if node.domain or node.operator not in _SCALED:
        return ""
    scaled = [_divided(rewriting, item, scale) for item in node.inputs[: _SCALED[node.operator]]]
    if not all(scaled):
        del rewriting.nodes[before:]
        return ""
    output = rewriting.fresh(f"{name}/scaled")
    inputs = (*scaled, *node.inputs[len(scaled) :])
    rewriting.nodes.append(replace(node, inputs=inputs, outputs=(output,)))
    return output


def _with_scale(rewriting: Rewriting, node: Node, scale: np.float32, place: int) -> str:
    """Add a copy of a node that has a scale, with the quotient in its place, and a bias that is divided, too."""
    inputs = list(node.inputs)
    own = inputs[place]
    known = rewriting.tensors.array(own)
    if known is None or known.dtype != np.float32 or node.attributes.get("output_dtype", 0):
        return ""
    with np.errstate(over="ignore", under="ignore"):
        quotients = np.asarray(known / scale)
    if not _are_normal(known, quotients):
        return ""
    if node.operator == "ScaledSums" and inputs[_BIAS]:
        inputs[_BIAS] = _divided(rewriting, inputs[_BIAS], scale)
        if not inputs[_BIAS]:
            return ""
    inputs[place] = rewriting.constant(f"{own}/scaled", quotients)
    output = rewriting.fresh(f"{node.outputs[0]}/scaled")
    rewriting.nodes.append(replace(node, inputs=tuple(inputs), outputs=(output,)))
    return output
