"""blocked_images: keep images in blocked layout between convolutions.

    a = Conv(x, w)            a = Conv(x, w, results='NCHWc')
    b = Relu(a)          ->   b = Relu(a)
    y = Conv(b, v)            y = Conv(b, v)

Elementwise operators keep the layout. So do operators that join, split, pad or resize images: `taskc.Blocks` after them
makes their results blocked. Then only the first and the last convolution convert from and to rows, and no kernel
between them reorders images.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.onnx.passes.formulas import Rewriting, replaced
from taskc.operators.graph import Graph, Node

# These have kernels for blocked images.
_OF_IMAGES = frozenset(
    {"Conv", "ConvInteger", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
)
# These compute each element from the elements at the same place.
_OF_ELEMENTS = frozenset(
    "Abs Add Ceil Celu Clip DequantizeLinear Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu "
    "Log Max Mean Min Mish Mul Neg PRelu QuantizeLinear Reciprocal Relu Round ScaledSums Selu Sigmoid "
    "Sign Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu".split()
)
# These only move elements, so that their results may as well be blocked.
_OF_MOVES = frozenset({"Concat", "Split", "Resize", "Upsample", "Pad"})
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger"})
_DOMAINS = ("", "taskc")


def blocked_images(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
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
            names = {name: rewriting.fresh(f"{name}/rows") for name in node.outputs if name in read}
            # Their kernels are fused with the node's.
            nodes += [
                replaced(node, "Blocks", (rows,), (name,), domain="taskc", version=1)
                for name, rows in names.items()
            ]
            node = replace(node, outputs=tuple([names.get(name, name) for name in node.outputs]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes[::-1]))
