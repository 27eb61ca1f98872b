"""quantized_products: products of dequantized bytes multiply the bytes, and scale the sums.

    a = DequantizeLinear(x, s, p)            i = MatMulInteger(x, w, p, q)
    b = DequantizeLinear(w, t, q)      ->    f = DequantizeLinear(i, t)
    y = MatMul(a, b)                         y = Mul(f, s)

The sums are then exact, and a following quantization of y is fused into the product, like any elementwise operator. A
Gemm, which also adds its c, and a Conv are rewritten, too: a Conv's sums are scaled and get their bias by an operator
of taskc's own, which keeps blocked images. The weights are constants, with one scale or one for each column, or
feature, of the result; x has one scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

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
    rewriting = _Rewriting(graph)
    nodes = [made for node in graph.nodes for made in rewriting.rewritten(node)]
    if not rewriting.is_changed:
        return graph
    return replace(graph, nodes=tuple(nodes))


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {made: node for node in graph.nodes for made in node.outputs}
        self.names = {*self.makers, *graph.constants, *graph.captured}
        self.names.update(value.name for value in graph.inputs)
        self.is_changed = False

    def rewritten(self, node: Node) -> Iterator[Node]:
        factors = [self.dequantized(name) for name in node.inputs[:2]]
        match node.operator, node.domain, factors:
            case "MatMul" | "Gemm" | "Conv", "", [_Dequantized() as x, _Dequantized() as w]:
                if self.is_fit(node, x, w):
                    self.is_changed = True
                    yield from self.of_bytes(node, x, w)
                    return
        yield node

    def dequantized(self, name: str) -> _Dequantized | None:
        """The bytes and known parameters from which a tensor is dequantized, or None."""
        node, constants = self.makers.get(name), self.graph.constants
        if node is None or node.operator != "DequantizeLinear" or node.domain:
            return None
        numbers, scale, zero = (*node.inputs, "")[:3]
        typed = constants.get(zero or numbers)
        scales = constants.get(scale)
        if (
            typed is None
            or typed.dtype not in _BYTES
            or scales is None
            or scales.dtype != np.float32
        ):
            return None
        is_blocked = node.attributes.get("block_size", 0) or scales.ndim > 1
        if is_blocked or node.attributes.get("output_dtype", 0) not in (0, _F32):
            return None
        axis = node.attributes.get("axis", 1)
        assert isinstance(axis, int)
        return _Dequantized(numbers, scale, zero, None if scales.size == 1 else axis)

    def is_fit(self, node: Node, x: _Dequantized, w: _Dequantized) -> bool:
        """Whether scaled sums of the bytes' products equal the node's result."""
        weights = self.graph.constants.get(w.numbers)
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

    def of_bytes(self, node: Node, x: _Dequantized, w: _Dequantized) -> Iterator[Node]:
        (y,), bias = node.outputs, (*node.inputs, "")[2]
        sums, numbers = self.fresh(y, "sums"), w.numbers
        if node.operator == "Conv":
            inputs = [x.numbers, numbers, x.zero, w.zero]
            yield self.node(node, "ConvInteger", inputs, sums, **node.attributes)
            scaled_sums = self.node(node, "ScaledSums", [sums, x.scale, w.scale, bias], y)
            yield replace(scaled_sums, domain="taskc")
            return
        if node.attributes.get("transB", 0):
            numbers = self.fresh(y, "weights")
            yield self.node(node, "Transpose", [w.numbers], numbers, perm=[1, 0])
        scaled, moved = self.fresh(y, "scaled"), self.fresh(y, "moved") if bias else y
        yield self.node(node, "MatMulInteger", [x.numbers, numbers, x.zero, w.zero], sums)
        yield self.node(node, "DequantizeLinear", [sums, w.scale], scaled, axis=-1)
        yield self.node(node, "Mul", [scaled, x.scale], moved)
        if bias:
            yield self.node(node, "Add", [moved, bias], y)

    def node(self, of: Node, operator: str, inputs: list[str], output: str, **attributes: object) -> Node:  # fmt: skip
        """A node in place of another one, which messages name."""
        return replace(
            of, operator=operator, inputs=tuple(inputs), outputs=(output,), attributes=attributes
        )

    def fresh(self, name: str, what: str) -> str:
        """A name that isn't in use."""
        unused = next(
            candidate for n in count() if (candidate := f"{name}_{what}{n or ''}") not in self.names
        )
        self.names.add(unused)
        return unused
