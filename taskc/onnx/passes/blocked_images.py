"""blocked_images: convolutions pass on images in blocks of channels to others that read such.

    a = Conv(x, w)            a = Conv(x, w, results='NCHWc')
    b = Relu(a)          ->   b = Relu(a)
    y = Conv(b, v)            y = Conv(b, v)

What is computed element by element leaves images as they are. Only the first convolution and the last one have an edge
to rows then; no kernel reorders images between.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.onnx.graph import Graph, Node

# These have kernels for images in blocks.
_OF_IMAGES = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
# These compute each element from those at the same place.
_OF_ELEMENTS = frozenset(
    "Abs Add Ceil Celu Clip Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Max Mean Min Mish Mul Neg"
    " PRelu Reciprocal Relu Round Selu Sigmoid Sign Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu".split()
)


def blocked_images(graph: Graph) -> Graph:
    wanted: set[str] = set()
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        is_wanted = not node.domain and node.outputs[0] in wanted
        if node.operator == "Conv" and is_wanted:
            node = replace(node, attributes={**node.attributes, "results": "NCHWc"})
        if node.operator in _OF_IMAGES and not node.domain:
            wanted.add(node.inputs[0])
        elif node.operator in _OF_ELEMENTS and is_wanted:
            wanted.update(node.inputs)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes[::-1]))
