"""Classifiers with labels of text become ones with numbers, whose labels are looked up.

y, scores = LinearClassifier(x, classlabels_strings=["a", "b"])
->
n, scores = LinearClassifier(x, classlabels_int64s=[0, 1])        y = LabelEncoder(n, values_strings=["a", "b"])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskc.operators.graph import Graph, Node

_ML = "ai.onnx.ml"
_CLASSIFIERS = ("LinearClassifier", "TreeEnsembleClassifier")


def separate_labels(graph: Graph) -> Graph:
    if not any(map(_is_separated, graph.nodes)):
        return graph
    return replace(graph, nodes=tuple([part for node in graph.nodes for part in _parts(node)]))


def _is_separated(node: Node) -> bool:
    is_classifier = node.domain == _ML and node.operator in _CLASSIFIERS
    return is_classifier and bool(node.attributes.get("classlabels_strings"))


def _parts(node: Node) -> Iterator[Node]:
    if not _is_separated(node):
        yield node
        return
    labels = node.attributes["classlabels_strings"]
    assert isinstance(labels, list)
    numbers, (label, *scores) = [*range(len(labels))], node.outputs
    attributes = {**node.attributes, "classlabels_int64s": numbers, "classlabels_strings": []}
    number = f"{label or node.name}/number"
    yield replace(node, attributes=attributes, outputs=(number, *scores))
    if label:
        table: dict[str, object] = {"keys_int64s": numbers, "values_strings": labels}
        yield Node("LabelEncoder", (number,), (label,), table, 4, _ML, "", node.where)
