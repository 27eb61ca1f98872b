"""Divisions by the scales of quantization become factors that are there anyway.

    f = ScaledSums(..., s, t, b)             f = ScaledSums(..., s / u, t, b / u)
    a = DequantizeLinear(x, v, p)            a = DequantizeLinear(x, v / u, p)
    c = Add(f, a)                      ->    c = Add(f, a)
    r = Relu(c)
    y = QuantizeLinear(r, u, q)              y = QuantizeLinear(c, 1, q, factor=1)

A division takes as long as all other operations between two convolutions. Scales are constants, so the quotients are
computed when the model is compiled; ONNX Runtime requantizes sums by such factors, too. Where the factors of a tensor
aren't known, it is multiplied by 1 / u. A Relu is left out where q is the least byte. A number that is halfway between
two bytes may become the other one.

    a = DequantizeLinear(x, u, q)
    b = MaxPool(a)                     ->    y = MaxPool(x)
    y = QuantizeLinear(b, u, q)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from taskc.onnx.passes.formulas import Rewriting, Tensors
from taskc.operators.graph import Graph, Node

# The number of inputs whose common positive factor is the result's, too; None for all.
_SCALED = {"Relu": None, "Add": None, "Sub": None, "Concat": None, "MaxPool": None, "Mul": 1}

_INTEGERS = tuple(map(np.dtype, (np.int8, np.uint8, np.int16, np.uint16)))
_SCALE_OF_IMAGES, _BIAS = 4, 6  # inputs of ScaledSums


def quantization_scales(graph: Graph) -> Graph:
    rewriting, known = Rewriting(graph), {*graph.constants, ""}
    for node in graph.nodes:
        scale = _scale(rewriting, node)
        if known.issuperset(node.reads):  # computed once: a table has the operators' own numbers
            known.update(node.outputs)
            scale = None
        if scale is not None and (pool := _pool_of_bytes(rewriting.tensors, node)) is not None:
            node = pool
        elif scale is not None:
            before, factor = _before_clamping(rewriting, node), np.float32(1)
            x = _divided(rewriting, before, scale)
            if not x:
                x, factor = before, factor / scale
            name = rewriting.constant(f"{node.inputs[1]}/factor", np.asarray(factor))
            inputs, attributes = (x, name, *node.inputs[2:]), {**node.attributes, "factor": 1}
            node = replace(node, inputs=inputs, attributes=attributes)
        rewriting.nodes.append(node)
    return rewriting.graph


def _pool_of_bytes(tensors: Tensors, node: Node) -> Node | None:
    """The pooling of bytes that a QuantizeLinear's result is, if it is of numbers dequantized the same way."""
    pool = tensors.makers.get(node.inputs[0])
    if pool is None or (pool.domain, pool.operator, len(pool.outputs)) != ("", "MaxPool", 1):
        return None
    before = tensors.makers.get(pool.inputs[0])
    if tensors.reads[pool.outputs[0]] != 1 or before is None:
        return None
    if before.domain or before.operator != "DequantizeLinear":
        return None
    pairs = zip(before.inputs[1:3], node.inputs[1:3], strict=False)
    arrays = [tuple(map(tensors.array, pair)) for pair in pairs]
    are_equal = len(arrays) == 2 and all(
        a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in arrays
    )
    return replace(pool, inputs=before.inputs[:1], outputs=node.outputs) if are_equal else None


def _before_clamping(rewriting: Rewriting, node: Node) -> str:
    """The input of a QuantizeLinear, or of a Relu before it whose zero is the least byte: what is less is clamped."""
    name, zero = node.inputs[0], rewriting.tensors.array((*node.inputs, "")[2])
    relu = rewriting.tensors.makers.get(name)
    if (
        zero is None
        or zero.size != 1
        or relu is None
        or (relu.domain, relu.operator) != ("", "Relu")
    ):
        return name
    is_least = zero.dtype.kind in "iu" and zero.reshape(()) == np.iinfo(zero.dtype).min
    return relu.inputs[0] if is_least and rewriting.tensors.reads[name] == 1 else name


def _scale(rewriting: Rewriting, node: Node) -> np.float32 | None:
    """The scale of a QuantizeLinear to integers if it is one normal f32 whose reciprocal is normal, too."""
    if node.domain or node.operator != "QuantizeLinear" or node.attributes.get("output_dtype", 0):
        return None
    zero = rewriting.tensors.array((*node.inputs, "")[2])
    if len(node.inputs) > 2 and node.inputs[2] and (zero is None or zero.dtype not in _INTEGERS):
        return None
    scale = rewriting.tensors.array(node.inputs[1])
    if scale is None or scale.dtype != np.float32 or scale.size != 1 or scale.ndim > 1:
        return None
    number = np.float32(scale.reshape(()))
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
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
    attributes = node.attributes
    if node.operator == "DequantizeLinear" and None not in map(
        rewriting.tensors.number, node.inputs[1:3]
    ):
        attributes = {**attributes, "factor": 1}
    inputs[place] = rewriting.constant(f"{own}/scaled", quotients)
    output = rewriting.fresh(f"{node.outputs[0]}/scaled")
    changed = replace(node, inputs=tuple(inputs), outputs=(output,), attributes=attributes)
    rewriting.nodes.append(changed)
    return output
