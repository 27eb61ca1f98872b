"""The size of a statement's code, once its loops are unrolled."""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.nodes import Constant, Statement
from taskc.ir.rewrite import statements


def length(values: range) -> int:
    """The length of a range; len() ends at 2**63."""
    return (values[-1] - values[0]) // values.step + 1 if values else 0


def trip_count(loop: ir.For) -> int | None:
    """The number of iterations, if the bounds are constant."""
    if type(loop.start) is not Constant or type(loop.stop) is not Constant:
        return None
    return length(range(int(loop.start.value), int(loop.stop.value), loop.step))


class CodeSizes:
    """Counts statements, each node once, for nodes that outlive it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Statement, int | None]] = {}

    def of(self, node: Statement) -> int | None:
        """The number of statements with all loops unrolled; None if a loop can't be unrolled."""
        known = self._known.get(id(node))
        if known is not None:
            return known[1]
        size: int | None = 0
        match node:
            case ir.While() | ir.Pipeline() | ir.Grid() | ir.Each():
                size = None
            case ir.Do(operation="mbarrier.wait"):
                size = None
            case ir.For():
                trips = None if node.kind == "serial" else trip_count(node)
                inner = self.of(node.body)
                size = None if trips is None or inner is None else trips * inner
            case _:
                below = [self.of(statement) for statement in statements(node)]
                size = 1 + sum(part or 0 for part in below)
                if None in below:
                    size = None
        self._known[id(node)] = node, size
        return size
