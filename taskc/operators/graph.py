"""The graph of operators into which a model is read, and on which rewrites work.

Nodes are in topological order. A name stands for one tensor: an input, a constant, or the output of one node. A graph
in a node's attribute (the branch of an If, the body of a Loop) may use the names of the graphs around it, and never
redefines one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.types import DType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor as the model declares it: None is not declared, and a str is a named extent.

    foreign  ONNX's name of the type, if it isn't a tensor's that programs compute with: "seq(tensor)"
    """

    name: str
    dtype: DType | None = None
    shape: tuple[int | str | None, ...] | None = None
    foreign: str = ""

    def __str__(self) -> str:
        if self.foreign:
            return f"{self.name}: {self.foreign}"
        if self.shape is None:
            return f"{self.name}: {self.dtype or '?'}"
        extents = ", ".join("?" if extent is None else str(extent) for extent in self.shape)
        return f"{self.name}: {self.dtype or '?'}[{extents}]"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator of a model, with the defaults of its attributes filled in.

    inputs, outputs  names; "" is one that is absent
    attributes       int, float, str (bytes where it isn't text), a list of these, an array, or a Graph
    version          of the node's operator set
    domain           "" is ONNX's own
    name             the model's, which may be empty and need not be unique
    where            the model's file, or the line of a program that calls the operator
    called           its name in messages, if it belongs to no model
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, object] = field(default_factory=dict)
    version: int = 0
    domain: str = ""
    name: str = ""
    where: Location = NOWHERE
    called: str = ""

    @property
    def title(self) -> str:
        """The name of this node in messages."""
        if self.called:
            return self.called
        if self.name:
            return f"{self.operator} node '{self.name}'"
        made = next(filter(None, self.outputs), "")
        return f"{self.operator} node that makes '{made}'" if made else f"{self.operator} node"

    @property
    def place(self) -> Location:
        """The location reported for the program calls that the node became: its title in place of a source line."""
        return replace(self.where, text=self.title)

    def error(self, message: str, hint: str | None = None) -> CompileError:
        """An error of the model at this node."""
        return CompileError(f"{self.title}: {message}", self.where, hint)

    @property
    def graphs(self) -> Iterator[Graph]:
        """The graphs in its attributes."""
        for value in self.attributes.values():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Graph):
                    yield item

    @property
    def reads(self) -> Iterator[str]:
        """The names that it needs: its inputs, and the names that its graphs capture."""
        yield from filter(None, self.inputs)
        for graph in self.graphs:
            yield from graph.captured

    def __str__(self) -> str:
        arguments = [name or "-" for name in self.inputs]
        arguments += [f"{name}={_shown(value)}" for name, value in self.attributes.items()]
        operator = f"{self.domain}.{self.operator}" if self.domain else self.operator
        outputs = ", ".join(name or "-" for name in self.outputs)
        return f"{outputs} = {operator}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Operators between named inputs and outputs; an output may also be an input or a constant.

    values  the declared types by name: of inputs and outputs, and of other tensors that the model declares
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Array]
    values: dict[str, Value]

    @property
    def returned(self) -> tuple[Value, ...]:
        """The outputs as the model declares them."""
        return tuple([self.values.get(name, Value(name)) for name in self.outputs])

    @property
    def captured(self) -> Iterator[str]:
        """The names of the enclosing graphs that this one uses."""
        defined = {value.name for value in self.inputs} | self.constants.keys()
        defined.update(name for node in self.nodes for name in node.outputs)
        used = dict.fromkeys(name for node in self.nodes for name in node.reads)
        return (name for name in {**used, **dict.fromkeys(self.outputs)} if name not in defined)

    @property
    def needed(self) -> list[Node]:
        """The nodes that the outputs depend on."""
        needed = {*self.outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.reads)
                nodes.append(node)
        return nodes[::-1]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"{graph.name}({', '.join(map(str, graph.inputs))}) -> {', '.join(graph.outputs)}"
    for name, array in graph.constants.items():
        yield f"  {name} = {_shown(array)}"
    for node in graph.nodes:
        yield f"  {node}"
        for inner in node.graphs:
            yield from (f"    {line}" for line in _lines(inner))


def _shown(value: object) -> str:
    match value:
        case np.ndarray():
            extents = ", ".join(map(str, value.shape))
            return (
                f"{value.dtype}[{extents}]" if value.size > 8 else f"{value.dtype} {value.tolist()}"
            )
        case Graph():
            return value.name or "graph"
        case list():
            return f"[{', '.join(map(_shown, value))}]"
    return repr(value)
