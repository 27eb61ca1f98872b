"""Functions of one byte, looked up in a table of 256.

    a = DequantizeLinear(x, s, p)
    b = Sigmoid(a)
    c = QuantizeLinear(b, t, q)
    d = DequantizeLinear(c, t, q)      ->    y = taskc.Table(x, f(all bytes))
    e = Mul(a, d)
    y = QuantizeLinear(e, u, r)

All values between x and y are functions of a single element of x. Scales, zero points and other numbers are constants,
or dequantized constants. The table is computed when the model is compiled, by the same operators: nothing is rounded
differently. A formula that costs less than a lookup stays, such as a Relu.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from taskc.onnx.passes.convolutions import OF_ELEMENTS
from taskc.onnx.passes.formulas import Rewriting, Tensors, replaced
from taskc.operators.graph import Array, Graph, Node

_SCALED = ("DequantizeLinear", "QuantizeLinear")
_COSTLY = frozenset(
    "Celu Elu Erf Exp Gelu Log Mish Selu Sigmoid Softplus Softsign Sqrt Swish Tanh".split()
)


def byte_tables(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    sources: dict[str, str] = {}
    numbers: set[str] = set()
    for node in graph.nodes:
        if _is_dequantized_number(rewriting.tensors, node):
            numbers.add(node.outputs[0])
        source = _source(rewriting.tensors, sources, numbers, node)
        if source is not None:
            sources[node.outputs[0]] = source
        if source is None or not _is_worth_it(rewriting.tensors, source, node):
            rewriting.nodes.append(node)
            continue
        table = _tabulated(rewriting, source, node)
        rewriting.nodes.append(replaced(node, "Table", (source, table), domain="taskc", version=1))
    return rewriting.graph


def _is_dequantized_number(tensors: Tensors, node: Node) -> bool:
    """Whether the node's result is one number: quantizers make bytes of a model's numbers, too."""
    is_plain = node.operator == "DequantizeLinear" and not node.domain
    return is_plain and all(_is_number(tensors.array(name)) for name in node.reads)


def _source(tensors: Tensors, sources: dict[str, str], numbers: set[str], node: Node) -> str | None:
    """The bytes of which the node's result is a function, element by element; `numbers` are dequantized constants."""
    if node.domain or node.operator not in OF_ELEMENTS or len(node.outputs) != 1:
        return None
    reads = list(node.reads)
    if node.operator == "DequantizeLinear":
        name, *parameters = reads
        zero = tensors.array(node.inputs[2]) if len(node.inputs) > 2 else None
        is_of_bytes = zero is not None and zero.dtype.itemsize == 1 and zero.dtype.kind in "iu"
        is_fit = is_of_bytes and tensors.array(name) is None
        return sources.get(name, name) if is_fit and _are_single(tensors, parameters) else None
    read = reads[:1] if node.operator in _SCALED else reads
    others = reads[len(read) :]
    varying = {
        sources.get(name)
        for name in read
        if name not in numbers and not _is_number(tensors.array(name))
    }
    is_one = len(varying) == 1 and _are_single(tensors, others)
    return varying.pop() if is_one else None


def _are_single(tensors: Tensors, names: list[str]) -> bool:
    arrays = [tensors.array(name) for name in names]
    return all(array is not None and array.size == 1 for array in arrays)


def _is_number(array: Array | None) -> bool:
    return array is not None and array.ndim == 0


def _between(tensors: Tensors, source: str, node: Node) -> Iterator[Node]:
    """The nodes between the bytes and a node's result, each after those that it reads."""
    done: set[str] = {source}

    def visit(node: Node) -> Iterator[Node]:
        if node.outputs[0] in done:
            return
        done.add(node.outputs[0])
        for name in node.reads:
            if name in tensors.makers and name not in done:
                yield from visit(tensors.makers[name])
        yield node

    return visit(node)


def _is_worth_it(tensors: Tensors, source: str, node: Node) -> bool:
    """Whether a result of bytes takes longer to compute than to look up."""
    if node.operator != "QuantizeLinear":
        return False
    operators = [item.operator for item in _between(tensors, source, node)]
    zero = tensors.array(node.inputs[2]) if len(node.inputs) > 2 else np.uint8(0)
    is_of_bytes = zero is not None and zero.dtype.itemsize == 1 and zero.dtype.kind in "iu"
    is_short = operators.count("QuantizeLinear") == 1 and _COSTLY.isdisjoint(operators)
    return is_of_bytes and not is_short


def _tabulated(rewriting: Rewriting, source: str, node: Node) -> str:
    """Add the nodes between, of all bytes instead of the source; the name of the result."""
    tensors = rewriting.tensors
    zero = next(
        tensors.array(item.inputs[2])
        for item in _between(tensors, source, node)
        if item.operator == "DequantizeLinear" and item.inputs[0] == source
    )
    assert zero is not None
    bytes_ = np.arange(256, dtype=np.uint8).view(zero.dtype)
    names = {source: rewriting.constant(f"{source}/bytes", bytes_)}
    for item in _between(tensors, source, node):
        names[item.outputs[0]] = rewriting.fresh(f"{item.outputs[0]}/table")
        inputs = tuple(names.get(name, name) for name in item.inputs)
        rewriting.nodes.append(replace(item, inputs=inputs, outputs=(names[item.outputs[0]],)))
    return names[node.outputs[0]]
