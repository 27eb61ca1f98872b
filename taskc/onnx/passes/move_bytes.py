"""Numbers are moved as bytes: quantized before they are moved, and not again.

    a = Gelu(x)                          b = QuantizeLinear(a, t, q)
    b = Reshape(a, shape)          ->    y = Reshape(b, shape)
    y = QuantizeLinear(b, t, q)

    a = DequantizeLinear(x, s, p)
    b = Slice(a, ...)              ->    y = Slice(x, ...)
    y = QuantizeLinear(b, s, p)

Results are the same: all elements have one scale and one zero point, and a byte's number is quantized to that byte.
Operators between bytes and bytes may then become a table, and a product's epilogue quantizes once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taskc.onnx.passes.formulas import Rewriting, Tensors
from taskc.operators.graph import Graph, Node

_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SELECTIONS = frozenset({"Slice"})  # elements that aren't selected need no quantizing

_OVERFLOWS = (
    float(np.finfo(np.float32).max) / 255
)  # the scale of bytes whose numbers may be infinite


def move_bytes(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        if node.operator == "QuantizeLinear" and _has_one_scale(rewriting.tensors, node):
            _quantize_early(rewriting, node)
        else:
            rewriting.nodes.append(node)
    return rewriting.graph


def _has_one_scale(tensors: Tensors, node: Node) -> bool:
    """Whether a node quantizes to bytes, or dequantizes them, by a known scale and zero point for all elements."""
    has_types = any(node.attributes.get(name, 0) for name in ("output_dtype", "precision"))
    if node.domain or len(node.inputs) != 3 or has_types:
        return False
    scale, zero = (tensors.array(name) for name in node.inputs[1:])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return False
    are_known = scale.dtype == np.float32 and zero.dtype in (np.int8, np.uint8)
    return are_known and bool(abs(scale.item()) < _OVERFLOWS)


def _quantize_early(made: Rewriting, node: Node) -> None:
    """Add the nodes that quantize and then move, or only move bytes; or the node itself."""
    tensors, moves = made.tensors, list[Node]()
    name = node.inputs[0]
    while (maker := tensors.makers.get(name)) is not None and _is_move(maker):
        moves.append(maker)
        name = maker.inputs[0]
    if moves and maker is not None and _undoes(tensors, node, maker):
        numbers = maker.inputs[0]
    elif moves and all(move.operator in _MOVES for move in moves):
        numbers = made.fresh(f"{node.outputs[0]}/unmoved")
        inputs = (name, *node.inputs[1:])
        made.nodes.append(replace(node, inputs=inputs, outputs=(numbers,)))
    else:
        made.nodes.append(node)
        return
    for move in moves[::-1]:
        moved = node.outputs[0] if move is moves[0] else made.fresh(f"{numbers}/moved")
        made.nodes.append(replace(move, inputs=(numbers, *move.inputs[1:]), outputs=(moved,)))
        numbers = moved


def _is_move(node: Node) -> bool:
    return not node.domain and node.operator in _MOVES | _SELECTIONS


def _undoes(tensors: Tensors, node: Node, maker: Node) -> bool:
    """Whether a node quantizes again what its maker dequantized."""
    if maker.operator != "DequantizeLinear" or not _has_one_scale(tensors, maker):
        return False
    pairs = [
        [tensors.array(name) for name in names]
        for names in zip(node.inputs[1:], maker.inputs[1:], strict=True)
    ]
    return all(a.dtype == b.dtype and a.item() == b.item() for a, b in pairs)  # type: ignore[union-attr]
