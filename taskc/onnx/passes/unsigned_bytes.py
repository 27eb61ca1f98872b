"""Signed bytes between QuantizeLinear and DequantizeLinear become unsigned ones.

    y = QuantizeLinear(x, s, p)                y = QuantizeLinear(x, s, p + 128)          p + 128 is u8
    a = DequantizeLinear(y, s, p)       ->     a = DequantizeLinear(y, s, p + 128)

All values are the same to the bit. Instructions multiply unsigned bytes by signed ones: signed activations would be
made unsigned at each product, and what that adds be subtracted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taskc.onnx.passes.formulas import Rewriting, Tensors
from taskc.operators.graph import Array, Graph, Node

_HALF = 128


def unsigned_bytes(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    tensors = rewriting.tensors
    changed = {
        node.outputs[0]
        for node in graph.nodes
        if _zero(tensors, node, "QuantizeLinear") is not None and _are_dequantized(tensors, node)
    }
    for node in graph.nodes:
        if changed.intersection((*node.inputs[:1], *node.outputs)):
            zero = tensors.array(node.inputs[2])
            assert zero is not None
            more = np.asarray(zero.astype(np.int16) + _HALF, np.uint8)
            inputs = (*node.inputs[:2], rewriting.constant(node.inputs[2], more))
            node = replace(node, inputs=inputs, attributes=_without_type(node))
        rewriting.nodes.append(node)
    return rewriting.graph


def _zero(tensors: Tensors, node: Node, operator: str) -> Array | None:
    """The constant zero points of a node of signed bytes."""
    if node.domain or node.operator != operator or len(node.inputs) < 3:
        return None
    zero = tensors.array(node.inputs[2])
    return zero if zero is not None and zero.dtype == np.int8 else None


def _are_dequantized(tensors: Tensors, node: Node) -> bool:
    """Whether DequantizeLinear alone reads a node's bytes."""
    name = node.outputs[0]
    readers = tensors.readers.get(name, [])
    are_fit = all(
        _zero(tensors, reader, "DequantizeLinear") is not None
        and reader.inputs[0] == name
        and tensors.reads[name] == len(readers)
        for reader in readers
    )
    return bool(readers) and are_fit


def _without_type(node: Node) -> dict[str, object]:
    """A node's attributes, without a type that the zero point says."""
    is_of_bytes = node.operator == "QuantizeLinear"
    return {
        name: value
        for name, value in node.attributes.items()
        if not (is_of_bytes and name == "output_dtype")
    }
