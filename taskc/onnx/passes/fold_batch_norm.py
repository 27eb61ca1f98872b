"""fold_batch_norm: fold a batch norm into the filters and bias of the convolution before it.

    c = Conv(x, w, b)
    y = BatchNormalization(c, scale, shift, mean, variance)
->
    v, d = taskc.Folded(w, b, scale, shift, mean, variance)
    y = Conv(x, v, d)

All inputs but x are constants: the filters are computed once, when the model is compiled. Scaled filters are rounded,
where sums were before.
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
