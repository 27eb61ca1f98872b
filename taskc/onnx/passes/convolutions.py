"""Rewrites of convolutions, and of the operators around them.

fold_batch_norm: fold a batch norm into the filters and bias of the convolution before it.

    c = Conv(x, w, b)
    y = BatchNormalization(c, scale, shift, mean, variance)
->
    v, d = taskc.Folded(w, b, scale, shift, mean, variance)
    y = Conv(x, v, d)

All inputs but x are constants: the filters are computed once, when the model is compiled. Scaled filters are rounded,
where sums were before.

exact_sums: convolutions add up their products one by one, without Winograd's algorithm. Users ask for it.

    y = Conv(x, w)     ->     y = Conv(x, w, exact=1)

By default 3 x 3 convolutions may use Winograd's algorithm where it is faster: it needs fewer products, and rounds
differently.

blocked_images: keep images in blocked layout between convolutions.

    a = Conv(x, w)            a = Conv(x, w, results='NCHWc')
    b = Relu(a)          ->   b = Relu(a)
    y = Conv(b, v)            y = Conv(b, v)

Elementwise operators keep the layout. So do operators that join, split, pad or resize images: `taskc.Blocks` after them
makes their results blocked. Then only the first and the last convolution convert from and to rows, and no kernel
between them reorders images.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.onnx.passes.formulas import Rewriting, Tensors, replaced
from taskc.operators.graph import Graph, Node


def fold_batch_norm(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        conv = _foldable(rewriting.tensors, node)
        if conv is None:
            rewriting.nodes.append(node)
            continue
        filters = rewriting.fresh(f"{node.outputs[0]}/filters")
        bias = rewriting.fresh(f"{node.outputs[0]}/bias")
        old_filters = (*conv.inputs[1:], "")[:2]
        folded = replaced(
            node,
            "Folded",
            (*old_filters, *node.inputs[1:]),
            (filters, bias),
            domain="taskc",
            version=1,
            epsilon=node.attributes.get("epsilon", 1e-5),
        )
        inputs = (conv.inputs[0], filters, bias)
        rewriting.nodes += [folded, replace(conv, inputs=inputs, outputs=node.outputs[:1])]
    return rewriting.graph


def _foldable(tensors: Tensors, node: Node) -> Node | None:
    """The convolution whose result a batch norm alone reads, if the norm can be folded into it."""
    if node.domain or node.operator != "BatchNormalization" or any(node.outputs[1:]):
        return None
    is_usual = node.attributes.get("spatial", 1) and not node.attributes.get("training_mode", 0)
    conv = tensors.made_by("Conv", node.inputs[0])
    if conv is None or not is_usual:
        return None
    is_alone = all(tensors.reads[name] == 1 for name in (node.inputs[0], conv.outputs[0]))
    constants = [*filter(None, conv.inputs[1:]), *node.inputs[1:]]
    is_known = all(tensors.array(name) is not None for name in constants)
    return conv if is_alone and is_known else None


def exact_sums(graph: Graph) -> Graph:
    nodes = [
        replace(node, attributes={**node.attributes, "exact": 1})
        if node.operator == "Conv" and not node.domain
        else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


# These have kernels for blocked images.
_OF_IMAGES = frozenset(
    "Conv ConvTranspose ConvInteger ScaledSums MaxPool AveragePool GlobalMaxPool GlobalAveragePool".split()
)
# These compute each element from the elements at the same place.
OF_ELEMENTS = frozenset(
    "Abs Add Ceil Celu Clip DequantizeLinear Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu "
    "Log Max Mean Min Mish Mul Neg PRelu QuantizeLinear Reciprocal Relu Round Selu Sigmoid "
    "Sign Softplus Softsign Sqrt Sub Sum Swish Table Tanh ThresholdedRelu".split()
)
# These only move elements, so that their results may as well be blocked.
_OF_MOVES = frozenset({"Concat", "Split", "Resize", "Upsample", "Pad"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "ConvInteger", "ScaledSums"})
_DOMAINS = ("", "taskc")


def blocked_images(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    wanted: set[str] = set()
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        read = wanted.intersection(node.outputs) if node.domain in _DOMAINS else set()
        if node.operator in _CONVOLUTIONS and read:
            node = replace(node, attributes={**node.attributes, "results": "NCHWc"})
        if node.operator in _OF_IMAGES and node.domain in _DOMAINS:
            wanted.add(node.inputs[0])
        elif node.operator in OF_ELEMENTS and read:
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
