"""The graphs of a driver that isn't there.

A launch runs the nodes in an order by chance, in which each comes behind those that it depends on: where a
dependency is missing, some launches go wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.backend.cuda.fake_streams import Action, FakeStreams, Point


@dataclass
class Node:
    """after   the nodes that it depends on
    noted   what is known of it: of a kernel, what it is passed
    """

    action: Action
    after: list[int]
    noted: Any = None


@dataclass
class Executable:
    """Nodes are copied from the graph. `launched` is where its last launch ends."""

    graph: int
    nodes: dict[int, Node]
    launched: tuple[Point, ...] = ()


class FakeGraphs:
    """Graphs, and what was instantiated of them, by their handles. What is refused is a KeyError or a ValueError."""

    def __init__(self) -> None:
        self.graphs: dict[int, dict[int, Node]] = {}
        self.executables: dict[int, Executable] = {}
        self._random = Random(0)

    def add(
        self, graph: int, handle: int, dependencies: Sequence[int], action: Action, noted: Any
    ) -> None:
        nodes = self.graphs[graph]
        if len(set(dependencies)) < len(dependencies) or not nodes.keys() >= set(dependencies):
            raise ValueError
        nodes[handle] = Node(action, list(dependencies), noted)

    def captured(self, graph: int, actions: Sequence[Action], touches: Sequence[Any]) -> None:
        """A graph of what one stream has done: one after another. `touches`: what all that reads and writes."""
        self.graphs[graph] = {}
        for number, action in enumerate(actions):
            noted = [] if number else [*touches]
            self.add(graph, number, [number - 1] if number else [], action, noted)

    def instantiate(self, graph: int, handle: int) -> None:
        nodes = self.graphs[graph].items()
        copied = {name: Node(node.action, [*node.after], node.noted) for name, node in nodes}
        self.executables[handle] = Executable(graph, copied)

    def set(self, executable: int, node: int, action: Action, noted: Any) -> None:
        """Only later launches see it. The node is named by the graph, which has to be there."""
        found = self.executables[executable]
        self.graphs[found.graph][node]
        found.nodes[node].action, found.nodes[node].noted = action, noted

    def launch(self, executable: int, streams: FakeStreams, stream: int) -> None:
        """Runs behind its own last launch, whichever stream that was in."""
        found = self.executables[executable]
        actions = [found.nodes[name].action for name in self._order(found.nodes)]
        found.launched = (streams.put(stream, actions, found.launched),)

    def _order(self, nodes: dict[int, Node]) -> list[int]:
        order: list[int] = []
        left = dict(nodes)
        while left:
            ready = [name for name, node in left.items() if not left.keys() & set(node.after)]
            order.append(self._random.choice(ready))
            del left[order[-1]]
        return order
