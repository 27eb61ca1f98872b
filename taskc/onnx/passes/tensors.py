"""What passes ask of a graph's tensors: who makes them, how often they are read, and which are constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from taskc.operators.graph import Array, Graph, Node


@dataclass(frozen=True)
class Tensors:
    """The tensors of a graph, by name."""

    graph: Graph

    @cached_property
    def makers(self) -> dict[str, Node]:
        return {name: node for node in self.graph.nodes for name in node.outputs if name}

    @cached_property
    def reads(self) -> Counter[str]:
        """How often nodes read a tensor; an output is read once more."""
        return Counter([name for node in self.graph.nodes for name in node.reads]) + Counter(
            self.graph.outputs
        )

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for name in dict.fromkeys(node.reads):
                found.setdefault(name, []).append(node)
        return found

    def made_by(self, operator: str, name: str) -> Node | None:
        """The node that makes a tensor, where it is one of ONNX's operator; what copies it is passed over."""
        node = self.makers.get(name)
        while node is not None and _copies(node):
            node = self.makers.get(node.inputs[0])
        return node if node is not None and not node.domain and node.operator == operator else None

    def only_reader(self, name: str) -> Node | None:
        """The node that alone reads a tensor."""
        return self.readers[name][0] if self.reads[name] == 1 and name in self.readers else None

    def array(self, name: str) -> Array | None:
        return self.graph.constants.get(name)

    def integers(self, name: str) -> list[int] | None:
        """The elements of a constant of integers."""
        array = self.array(name)
        return None if array is None or array.dtype.kind not in "iu" else array.reshape(-1).tolist()

    def number(self, name: str) -> float | None:
        """The one element of a constant, which may have an axis around it."""
        array = self.array(name)
        if array is None or array.ndim > 1 or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        return float(array.reshape(()))


def _copies(node: Node) -> bool:
    """Whether it makes what it is given."""
    if node.domain:
        return False
    is_training = len(node.inputs) > 2 and node.inputs[2] != ""
    return node.operator == "Identity" or (node.operator == "Dropout" and not is_training)


class Rewriting:
    """A graph that is being made of another one: nodes in order, and constants that come to the others."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = Tensors(graph)
        self.nodes: list[Node] = []
        self._constants = dict(graph.constants)
        self._taken = {*graph.values, *graph.constants, *self.tensors.makers, *self.tensors.reads}
        self._taken.update(value.name for value in graph.inputs)

    def fresh(self, like: str) -> str:
        """A name that nothing else has."""
        name, count = like, 1
        while name in self._taken:
            count += 1
            name = f"{like}_{count}"
        self._taken.add(name)
        return name

    def constant(self, like: str, array: Array) -> str:
        name = self.fresh(like)
        self._constants[name] = array
        return name

    def add(self, node: Node, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """Adds a node in the place of another one, and of its version; what it makes."""
        name = self.fresh(f"{node.outputs[0]}/{operator.lower()}")
        version, where = node.version, node.where
        made = Node(operator, tuple(inputs), (name,), attributes, version, "", node.name, where)
        self.nodes.append(made)
        return name

    @property
    def graph(self) -> Graph:
        return replace(self.tensors.graph, nodes=tuple(self.nodes), constants=self._constants)
