"""A model as it is written: names and attributes aren't looked up, functions aren't inlined, nothing is sorted.

`reader.py` makes these from a protobuf, and `resolve.py` makes a graph of operators from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from taskc.errors import CompileError, Location
from taskc.operators.graph import Array, Node, Value

Key: TypeAlias = "tuple[str, str, str]"  # a function's domain, name and overload


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model as messages call it, such as "the initializer 'w'", and the model's file."""

    title: str
    where: Location

    def error(self, message: str, hint: str | None = None) -> CompileError:
        return CompileError(f"{self.title} {message}", self.where, hint)


@dataclass(frozen=True, slots=True)
class Reference:
    """In the body of a function: the attribute of that name of the node that calls it."""

    name: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute as a node has it; `type` is its number in AttributeProto."""

    type: int
    value: object  # an int, float, str, bytes, array, WrittenGraph, a list of one of these, or a Reference


@dataclass(frozen=True, slots=True, eq=False)
class WrittenNode:
    """A node with its attributes beside it. `overload` chooses between functions of one name."""

    node: Node
    attributes: dict[str, Attribute]
    overload: str

    @property
    def graphs(self) -> Iterator[WrittenGraph]:
        for attribute in self.attributes.values():
            value = attribute.value
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, WrittenGraph):
                    yield item

    @property
    def reads(self) -> set[str]:
        """Its inputs, and what its graphs use of the graphs around."""
        return {*self.node.inputs}.union(*(graph.captured for graph in self.graphs)) - {""}


@dataclass(frozen=True, slots=True, eq=False)
class WrittenGraph:
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[WrittenNode, ...]
    constants: dict[str, Array]
    values: dict[str, Value]

    @property
    def names(self) -> Iterator[str]:
        """What it gives a meaning to."""
        yield from (value.name for value in self.inputs)
        yield from self.constants
        for written in self.nodes:
            yield from filter(None, written.node.outputs)

    @property
    def captured(self) -> set[str]:
        """The names of the graphs around that it uses."""
        return {*self.outputs}.union(*(node.reads for node in self.nodes)) - {*self.names}


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """What a model, or ONNX, defines a node by. `defaults` are of attributes that a call leaves out."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[WrittenNode, ...]
    defaults: dict[str, Attribute]
