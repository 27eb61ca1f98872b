"""Write what ONNX Runtime fused by ONNX's operators again, so that later passes see them.

    y = com.microsoft.FusedConv(x, w, b, z, activation='Relu')
->
    c = Conv(x, w, b)
    s = Add(c, z)
    y = Relu(s)

FusedGemm likewise; QuickGelu becomes Swish, and FastGelu without a bias becomes Gelu. The program fuses them anyway.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.onnx.passes.formulas import Rewriting, replaced
from taskc.operators.files import MICROSOFT
from taskc.operators.graph import Graph, Node

_PRODUCTS = {"FusedConv": "Conv", "FusedGemm": "Gemm"}
_ELEMENTS: dict[str, tuple[str, dict[str, object]]] = {
    "QuickGelu": ("Swish", {"alpha": 1.702}),
    "FastGelu": ("Gelu", {"approximate": "tanh"}),
    "Gelu": ("Gelu", {"approximate": "none"}),
}
# Activations with the names of their parameters in order, as attributes of ONNX's operator.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}  # fmt: skip
_SETS = {"Clip": 6, "Swish": 24, "Gelu": 20}  # the operator sets with these attributes
_SET = 13


def separate_fused(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        if node.domain != MICROSOFT:
            rewriting.nodes.append(node)
        elif node.operator in _PRODUCTS:
            _separate(rewriting, node)
        elif node.operator in _ELEMENTS and not any(node.inputs[1:]):
            operator, defaults = _ELEMENTS[node.operator]
            attributes = {
                name: node.attributes.get(name, value) for name, value in defaults.items()
            }
            one = replaced(node, operator, node.inputs[:1], version=_SETS[operator])
            rewriting.nodes.append(replace(one, attributes=attributes))
        else:
            rewriting.nodes.append(node)
    return rewriting.graph


def _separate(rewriting: Rewriting, node: Node) -> None:
    """Add the product, the sum with another tensor and the activation, as far as the node has them."""
    activation = node.attributes.get("activation")
    if activation and activation not in _ACTIVATIONS:
        rewriting.nodes.append(node)  # its builder refuses it, or has it
        return
    operator = _PRODUCTS[node.operator]
    own = {name: x for name, x in node.attributes.items() if not name.startswith("activation")}
    inputs, further = node.inputs[:3], "".join(node.inputs[3:4])
    steps: list[tuple[str, tuple[str, ...], dict[str, object]]] = [(operator, inputs, own)]
    if further:
        steps.append(("Add", (further,), {}))
    if isinstance(activation, str) and activation:
        steps.append((activation, (), _parameters(node, activation)))
    result = ""
    for number, (name, others, attributes) in enumerate(steps):
        reads = others if number == 0 else (result, *others)
        is_last = number == len(steps) - 1
        result = (
            node.outputs[0] if is_last else rewriting.fresh(f"{node.outputs[0]}/{name.lower()}")
        )
        step = replaced(node, name, reads, (result,), version=_SETS.get(name, _SET))
        rewriting.nodes.append(replace(step, attributes=attributes))


def _parameters(node: Node, activation: str) -> dict[str, object]:
    names = _ACTIVATIONS[activation]
    listed = node.attributes.get("activation_params")
    if isinstance(listed, list):
        return dict(zip(names, listed, strict=False))
    named = {name: node.attributes.get(f"activation_{name}") for name in names}
    return {name: value for name, value in named.items() if value is not None}
