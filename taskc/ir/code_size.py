"""How much code a statement is, once its loops are unrolled."""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.nodes import Constant, Statement
from taskc.ir.rewrite import statements


def length(values: range) -> int:
    """What len says, which ends at 2**63."""
    return (values[-1] - values[0]) // values.step + 1 if values else 0


def trip_count(loop: ir.For) -> int | None:
    """How many iterations it has, where the bounds are constant."""
    if type(loop.start) is not Constant or type(loop.stop) is not Constant:
        return None
    return length(range(int(loop.start.value), int(loop.stop.value), loop.step))


class CodeSizes:
    """Counts statements, each node once; of nodes that stay alive as long as this."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Statement, int | None]] = {}

    def of(self, node: Statement) -> int | None:
        """How many statements it is with its loops unrolled; None where a loop stays a loop."""
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
