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
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import isclose
from typing import TypeAlias

from taskc.dataclass import dataclass
from taskc.operators.graph import Array, Graph, Node

# --- A graph's tensors: the nodes that compute and read them, and constants


@dataclass(frozen=True)
class Tensors:
    """The tensors of a graph, by name."""

    graph: Graph

    @cached_property
    def makers(self) -> dict[str, Node]:
        return {name: node for node in self.graph.nodes for name in node.outputs if name}

    @cached_property
    def reads(self) -> Counter[str]:
        """The number of reads of each tensor; a graph output counts once more."""
        return Counter([name for node in self.graph.nodes for name in node.reads]) + Counter(
            self.graph.outputs
        )

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        readers: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for name in dict.fromkeys(node.reads):
                readers.setdefault(name, []).append(node)
        return readers

    def origin(self, name: str) -> str:
        """The tensor that this one is a copy of, or itself."""
        while name in self.makers and _copies(self.makers[name]):
            name = self.makers[name].inputs[0]
        return name

    def made_by(self, operator: str, name: str) -> Node | None:
        """The node that computes a tensor if its operator is this one of ONNX's; copies are skipped."""
        node = self.makers.get(self.origin(name))
        return node if node is not None and not node.domain and node.operator == operator else None

    def only_reader(self, name: str) -> Node | None:
        """The only node that reads a tensor, or None."""
        return self.readers[name][0] if self.reads[name] == 1 and name in self.readers else None

    def array(self, name: str) -> Array | None:
        return self.graph.constants.get(name)

    def integers(self, name: str) -> list[int] | None:
        """The elements of an integer constant."""
        array = self.array(name)
        return None if array is None or array.dtype.kind not in "iu" else array.reshape(-1).tolist()

    def number(self, name: str) -> float | None:
        """The only element of a constant of at most one axis."""
        array = self.array(name)
        if array is None or array.ndim > 1 or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        return float(array.reshape(()))


def _copies(node: Node) -> bool:
    """Whether a node's output equals its input."""
    if node.domain:
        return False
    is_training = len(node.inputs) > 2 and node.inputs[2] != ""
    return (
        node.operator == "Identity"
        or (node.operator == "Dropout" and not is_training)
        or (node.operator == "Concat" and len(node.inputs) == 1)
    )


def replaced(
    node: Node,
    operator: str,
    inputs: Sequence[str],
    outputs: Sequence[str] | None = None,
    *,
    domain: str = "",
    version: int | None = None,
    **attributes: object,
) -> Node:
    """A node in place of another one, which messages name; by default with its outputs and its version."""
    return replace(
        node,
        operator=operator,
        inputs=tuple(inputs),
        outputs=node.outputs if outputs is None else tuple(outputs),
        attributes=attributes,
        domain=domain,
        version=node.version if version is None else version,
    )


class Rewriting:
    """A graph under construction from another one: nodes in order, and additional constants."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = Tensors(graph)
        self.nodes: list[Node] = []
        self._constants = dict(graph.constants)
        self._taken = {*graph.values, *graph.constants, *self.tensors.makers, *self.tensors.reads}
        self._taken.update(value.name for value in graph.inputs)

    def fresh(self, like: str) -> str:
        """A name that isn't in use."""
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

    def add(
        self,
        node: Node,
        operator: str,
        inputs: Sequence[str],
        output: str = "",
        **attributes: object,
    ) -> str:
        """Add a node in place of another one, with its version; returns the name of its output, or of a new one."""
        name = output or self.fresh(f"{node.outputs[0]}/{operator.lower()}")
        plain = replaced(node, operator, inputs, (name,))
        self.nodes.append(replace(plain, attributes=attributes))
        return name

    @property
    def graph(self) -> Graph:
        return replace(self.tensors.graph, nodes=tuple(self.nodes), constants=self._constants)


Atoms: TypeAlias = tuple[int, ...]  # their numbers, in order
Formula: TypeAlias = Mapping[Atoms, float]

_MOST_TERMS = 32  # a longer formula becomes an atom
_DEEPEST = 12  # nodes in a chain
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

    def cone(self, name: str, x: str = "") -> list[Node]:
        """The nodes that a tensor's formulas may cover, or its formula in x, from the last one on."""
        cone: list[Node] = []
        level, seen = [name], {name, x}
        for _ in range(_DEEPEST):
            nodes = [self._makers[output] for output in level if output in self._makers]
            cone += nodes
            read = dict.fromkeys(name for node in nodes for name in node.inputs)
            level = [name for name in read if name not in seen]
            seen.update(level)
        return cone

    def keeps_shape(self, name: str, x: str) -> bool:
        """Whether a tensor that is a formula of x alone has its shape: a constant with an axis adds one to a scalar."""
        value = self.graph.values.get(x)
        if value is not None and value.shape:
            return True
        constants = [
            self.graph.constants[name]
            for node in self.cone(name, x)
            for name in node.inputs
            if name in self.graph.constants
        ]
        return not any(array.ndim for array in constants)

    def of(self, name: str, x: str) -> Formula:
        """The formula of a tensor in x and in tensors that don't depend on x."""
        return self._of(name, {x: self.tensor(x)}, _DEEPEST)

    def tensor(self, name: str) -> Formula:
        return self._atom("", name)

    def function(self, name: str, of: Formula) -> Formula:
        """A function of a formula."""
        return self._atom(name, frozenset((atoms, float(f"{of[atoms]:.5g}")) for atoms in of))

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
                made = self._made(node, [self._of(read, known, depth - 1) for read in node.inputs])
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
    """The name of the function that is the mean over this number of last axes."""
    return f"mean over {axes}"


def last_axes(graph: Graph, node: Node) -> int:
    """The number of axes that a node reduces, if these are certainly the last ones; else 0."""
    if len(node.inputs) > 1:
        listed = graph.constants.get(node.inputs[1])
        axes = [] if listed is None else [int(axis) for axis in listed.reshape(-1)]
    else:
        attribute = node.attributes.get("axes", [])
        assert isinstance(attribute, list)
        axes = [*attribute]
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
    factors: dict[Atoms, float] = {}
    for atoms, factor in terms:
        factors[atoms] = factors.get(atoms, 0.0) + factor
    return factors


def same(a: Formula, b: Formula) -> bool:
    return a.keys() == b.keys() and all(isclose(a[atoms], b[atoms], rel_tol=_CLOSE) for atoms in a)
