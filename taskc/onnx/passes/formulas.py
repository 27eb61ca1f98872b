"""Formulas: what a few elementwise nodes and means compute of a tensor x, where all ways to write it are equal.

A formula is a sum of products of atoms, each with a factor: 0.5 * x * (1 + tanh(y)) is {(x,): 0.5, (x, tanh(y)): 0.5}.
Atoms are tensors, and functions of formulas. So x * 0.5, x / 2 and 0.5 * x are one formula, and so are d * d and
d ** 2, or x - m and x + -m. Factors that differ by less than 1e-5 of them are the same ones: models round theirs.

Terms that cancel out stay, with a factor of 0: what they read may have more axes than the rest. So a formula of x alone
has the shape of x.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isclose
from typing import TypeAlias

from taskc.operators.graph import Array, Graph, Node

# --- What passes ask of a graph's tensors: who makes them, how often they are read, and which are constant


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


Atoms: TypeAlias = tuple[int, ...]  # by their numbers, in order
Formula: TypeAlias = Mapping[Atoms, float]

_MOST_TERMS = 32  # what is longer is an atom
_DEEPEST = 12  # nodes one behind the other
_CLOSE = 1e-5
_FUNCTIONS = frozenset({"Erf", "Tanh", "Sigmoid", "Sqrt"})
_FOLLOWED = _FUNCTIONS | set("Add Sub Mul Div Neg Pow Reciprocal ReduceMean Identity".split())


class Formulas:
    """The formulas of a graph's tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._tensors = Tensors(graph)
        self._makers = {
            node.outputs[0]: node
            for node in graph.nodes
            if not node.domain and node.operator in _FOLLOWED
        }
        self._numbers: dict[tuple[str, object], int] = {}

    def cone(self, name: str) -> list[Node]:
        """The nodes that a tensor's formulas may be of, from the last one on."""
        found: list[Node] = []
        level, seen = [name], {name}
        for _ in range(_DEEPEST):
            nodes = [self._makers[it] for it in level if it in self._makers]
            found += nodes
            read = dict.fromkeys(name for node in nodes for name in node.inputs)
            level = [name for name in read if name not in seen]
            seen.update(level)
        return found

    def keeps_shape(self, cone: Sequence[Node], x: str) -> bool:
        """Whether a formula of x alone has its shape: a number with an axis makes one of what has none."""
        value = self.graph.values.get(x)
        if value is not None and value.shape:
            return True
        given = [
            self.graph.constants[it] for n in cone for it in n.inputs if it in self.graph.constants
        ]
        return not any(array.ndim for array in given)

    def of(self, name: str, x: str) -> Formula:
        """The formula of a tensor, of x and of what doesn't depend on it."""
        return self._of(name, {x: self.tensor(x)}, _DEEPEST)

    def tensor(self, name: str) -> Formula:
        return self._atom("", name)

    def function(self, name: str, of: Formula) -> Formula:
        """A function of a formula."""
        return self._atom(name, frozenset((it, float(f"{of[it]:.5g}")) for it in of))

    def inverse(self, x: Formula) -> Formula:
        if x.keys() == {()} and x[()]:
            return {(): 1 / x[()]}
        return self.function("Reciprocal", x)

    def _atom(self, function: str, of: object) -> Formula:
        return {(self._numbers.setdefault((function, of), len(self._numbers)),): 1.0}

    def _of(self, name: str, known: dict[str, Formula], depth: int) -> Formula:
        if name not in known:
            node, value = self._makers.get(name), self._tensors.number(name)
            made: Formula | None = None if value is None else number(value)
            if node is not None and depth:
                made = self._made(node, [self._of(it, known, depth - 1) for it in node.inputs])
            known[name] = self.tensor(name) if made is None or len(made) > _MOST_TERMS else made
        return known[name]

    def _made(self, node: Node, given: list[Formula]) -> Formula | None:
        match node.operator, given:
            case "Identity", [x]:
                return x
            case "Neg", [x]:
                return times(x, number(-1))
            case "Add", [a, b]:
                return plus(a, b)
            case "Sub", [a, b]:
                return plus(a, times(b, number(-1)))
            case "Mul", [a, b]:
                return times(a, b)
            case "Div", [a, b]:
                return times(a, self.inverse(b))
            case "Reciprocal", [x]:
                return self.inverse(x)
            case "Pow", [x, by] if by.keys() == {()}:
                return self._power(x, by[()])
            case "ReduceMean", [x, *_]:
                axes = last_axes(self.graph, node)
                is_kept = node.attributes.get("keepdims", 1)
                return self.function(mean_over(axes), x) if axes and is_kept else None
            case function, [x] if function in _FUNCTIONS:
                return self.function(function, x)
        return None

    def _power(self, x: Formula, by: float) -> Formula | None:
        match by:
            case 2.0:
                return times(x, x)
            case 3.0:
                return times(x, times(x, x))
            case 0.5:
                return self.function("Sqrt", x)
            case -0.5:
                return self.inverse(self.function("Sqrt", x))
        return None


def mean_over(axes: int) -> str:
    """What the mean over so many last axes is called."""
    return f"mean over {axes}"


def last_axes(graph: Graph, node: Node) -> int:
    """How many axes a node reduces, if these are the last ones; 0 where it isn't known that they are."""
    if len(node.inputs) > 1:
        said = graph.constants.get(node.inputs[1])
        axes = [] if said is None else [int(axis) for axis in said.reshape(-1)]
    else:
        given = node.attributes.get("axes", [])
        assert isinstance(given, list)
        axes = [*given]
    value = graph.values.get(node.inputs[0])
    if value is not None and value.shape is not None:
        axes = [axis - len(value.shape) if axis >= 0 else axis for axis in axes]
    return len(axes) if sorted(axes) == [*range(-len(axes), 0)] else 0


def number(value: float) -> Formula:
    return {(): value}


def plus(a: Formula, b: Formula) -> Formula:
    return _sum([*a.items(), *b.items()])


def times(a: Formula, b: Formula) -> Formula:
    pairs = product(a.items(), b.items())
    return _sum((tuple(sorted((*x, *y))), one * other) for (x, one), (y, other) in pairs)


def _sum(terms: Iterable[tuple[Atoms, float]]) -> Formula:
    made: dict[Atoms, float] = {}
    for atoms, factor in terms:
        made[atoms] = made.get(atoms, 0.0) + factor
    return made


def same(a: Formula, b: Formula) -> bool:
    return a.keys() == b.keys() and all(isclose(a[it], b[it], rel_tol=_CLOSE) for it in a)
