"""blocked_images: convolutions pass on images in blocks of channels to others that read such.

    a = Conv(x, w)            a = Conv(x, w, results='NCHWc')
    b = Relu(a)          ->   b = Relu(a)
    y = Conv(b, v)            y = Conv(b, v)

What is computed element by element leaves images as they are, and so does what joins images, parts them, pads them or
changes their size: `taskc.Blocks` behind it has its results written in blocks. Only the first convolution and the last
one have an edge to rows then; no kernel reorders images between.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.onnx.passes.formulas import Rewriting
from taskc.operators.graph import Graph, Node

# These have kernels for images in blocks.
_OF_IMAGES = frozenset(
    {"Conv", "ConvInteger", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
)
# These compute each element from those at the same place.
_OF_ELEMENTS = frozenset(
    "Abs Add Ceil Celu Clip DequantizeLinear Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu "
    "Log Max Mean Min Mish Mul Neg PRelu QuantizeLinear Reciprocal Relu Round ScaledSums Selu Sigmoid "
    "Sign Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu".split()
)
# These only move elements: what they make lies in blocks as well as it does row by row.
_OF_MOVES = frozenset({"Concat", "Split", "Resize", "Upsample", "Pad"})
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger"})
_DOMAINS = ("", "taskc")


def blocked_images(graph: Graph) -> Graph:
    made = Rewriting(graph)
    wanted: set[str] = set()
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        read = wanted.intersection(node.outputs) if node.domain in _DOMAINS else set()
        if node.operator in _CONVOLUTIONS and read:
            node = replace(node, attributes={**node.attributes, "results": "NCHWc"})
        if node.operator in _OF_IMAGES and not node.domain:
            wanted.add(node.inputs[0])
        elif node.operator in _OF_ELEMENTS and read:
            wanted.update(node.inputs)
        elif node.operator in _OF_MOVES and read:
            wanted.update(node.inputs if node.operator == "Concat" else node.inputs[:1])
            names = {name: made.fresh(f"{name}/rows") for name in node.outputs if name in read}
            nodes += [_blocks(node, rows, name) for name, rows in names.items()]
            node = replace(node, outputs=tuple([names.get(name, name) for name in node.outputs]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes[::-1]))


def _blocks(node: Node, rows: str, name: str) -> Node:
    """What puts images into blocks that a node makes row by row; both become one kernel."""
    return Node("Blocks", (rows,), (name,), {}, 1, "taskc", node.name, node.where)
