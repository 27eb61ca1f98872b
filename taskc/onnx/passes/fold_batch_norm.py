"""fold_batch_norm: a convolution's filters and bias take in the batch norm behind it.

    c = Conv(x, w, b)
    y = BatchNormalization(c, scale, shift, mean, variance)
->
    v, d = taskc.Folded(w, b, scale, shift, mean, variance)
    y = Conv(x, v, d)

All but x are constants: the filters are computed once, when the model is compiled. What is rounded is a scaled filter,
and no longer a sum.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.onnx.passes.formulas import Rewriting, Tensors
from taskc.operators.graph import Graph, Node


def fold_batch_norm(graph: Graph) -> Graph:
    made = Rewriting(graph)
    for node in graph.nodes:
        conv = _behind(made.tensors, node)
        if conv is None:
            made.nodes.append(node)
            continue
        filters = made.fresh(f"{node.outputs[0]}/filters")
        bias = made.fresh(f"{node.outputs[0]}/bias")
        given = (*conv.inputs[1:], "")[:2]
        attributes: dict[str, object] = {"epsilon": node.attributes.get("epsilon", 1e-5)}
        names = (*given, *node.inputs[1:])
        folded = Node(
            "Folded", names, (filters, bias), attributes, 1, "taskc", node.name, node.where
        )
        inputs = (conv.inputs[0], filters, bias)
        made.nodes += [folded, replace(conv, inputs=inputs, outputs=node.outputs[:1])]
    return made.graph


def _behind(tensors: Tensors, node: Node) -> Node | None:
    """The convolution whose results a batch norm alone reads, where it can take that in."""
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
