"""Rewrites of products: of bytes, and in a shorter type.

quantized_products: products of dequantized bytes multiply the bytes, and scale the sums.

    a = DequantizeLinear(x, s, p)            i = MatMulInteger(x, w, p, q)
    b = DequantizeLinear(w, t, q)      ->    f = DequantizeLinear(i, t)
    y = MatMul(a, b)                         y = Mul(f, s)

The sums are then exact, and a following quantization of y is fused into the product, like any elementwise operator. A
Gemm, which also adds its c, and a Conv are rewritten, too, a Conv to an operator of taskc's own, `ScaledSums`, which
keeps blocked images. The weights are constants, with one scale or one for each column, or
feature, of the result; x has one scale.

low_precision: round both operands of products with weights to a shorter type, and sum in f32. Users ask for it.

    y = MatMul(x, w)     ->     y = MatMul(x, w, operands='bf16')

Everything else is unchanged: products of two activations (attention's), convolutions, recurrences, and models of types
other than f32. This pass runs only if `precision` is set; `taskc verify --precision` measures its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from taskc.dataclass import dataclass
from taskc.ir.types import DType
from taskc.onnx.passes.formulas import Rewriting, Tensors
from taskc.operators.graph import Graph, Node

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_F32 = 1  # the number of the type in a model
_MOST_PRODUCTS = (1 << 31) // 255**2  # whose sum certainly fits i32


@dataclass(frozen=True, slots=True)
class _Dequantized:
    """The names of bytes and their parameters; `axis` is that of several scales, or None for a single one."""

    numbers: str
    scale: str
    zero: str
    axis: int | None


def quantized_products(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        factors = [_dequantized(rewriting.tensors, name) for name in node.inputs[:2]]
        match node.operator, node.domain, factors:
            case "MatMul" | "Gemm" | "Conv", "", [_Dequantized() as x, _Dequantized() as w] if (
                _is_fit(graph, node, x, w)
            ):
                _multiply_bytes(rewriting, node, x, w)
            case _:
                rewriting.nodes.append(node)
    return rewriting.graph


def _dequantized(tensors: Tensors, name: str) -> _Dequantized | None:
    """The bytes and known parameters from which a tensor is dequantized, or None."""
    node = tensors.makers.get(name)
    if node is None or node.operator != "DequantizeLinear" or node.domain:
        return None
    numbers, scale, zero = (*node.inputs, "")[:3]
    typed, scales = tensors.array(zero or numbers), tensors.array(scale)
    if typed is None or typed.dtype not in _BYTES or scales is None or scales.dtype != np.float32:
        return None
    is_blocked = node.attributes.get("block_size", 0) or scales.ndim > 1
    if is_blocked or node.attributes.get("output_dtype", 0) not in (0, _F32):
        return None
    axis = node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    return _Dequantized(numbers, scale, zero, None if scales.size == 1 else axis)


def _is_fit(graph: Graph, node: Node, x: _Dequantized, w: _Dequantized) -> bool:
    """Whether scaled sums of the bytes' products equal the node's result."""
    weights = graph.constants.get(w.numbers)
    if weights is None or x.axis is not None:
        return False
    has_settings = node.attributes.get("alpha", 1.0) == 1 == node.attributes.get("beta", 1.0)
    if node.operator == "Conv":
        columns, rank_fits = 0, weights.ndim > 2
        products = weights[0].size if rank_fits and len(weights) else 0
    else:
        is_turned = bool(node.attributes.get("transB", 0))
        columns, rank_fits = 0 if is_turned else 1, weights.ndim == 2
        products = weights.shape[1 - columns] if rank_fits else 0
    is_by_column = w.axis is None or w.axis % max(1, weights.ndim) == columns
    is_plain = has_settings and not node.attributes.get("transA", 0)
    return rank_fits and is_by_column and is_plain and products <= _MOST_PRODUCTS


def _multiply_bytes(made: Rewriting, node: Node, x: _Dequantized, w: _Dequantized) -> None:
    """Add the nodes that multiply the bytes and scale the sums."""
    (y,), bias = node.outputs, (*node.inputs, "")[2]
    if node.operator == "Conv":
        inputs = (x.numbers, w.numbers, x.zero, w.zero, x.scale, w.scale, bias)
        made.nodes.append(replace(node, operator="ScaledSums", inputs=inputs, domain="taskc"))
        return
    weights = w.numbers
    if node.attributes.get("transB", 0):
        weights = made.add(node, "Transpose", [weights], perm=[1, 0])
    sums = made.add(node, "MatMulInteger", [x.numbers, weights, x.zero, w.zero])
    scaled = made.add(node, "DequantizeLinear", [sums, w.scale], axis=-1)
    product = made.add(node, "Mul", [scaled, x.scale], "" if bias else y)
    if bias:
        made.add(node, "Add", [product, bias], y)


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
