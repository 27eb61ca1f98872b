"""Which loops check for signals, and how often: those that may run long, so that Ctrl-C ends a block inside them.

for q in range(n):         for first in range(0, n, 2**15):
    s += x[q]                  for q in range(first, min(first + 2**15, n)):
                                   s += x[q]
                               if more is left: check for signals
"""

from __future__ import annotations

from taskc.analysis.facts import Facts
from taskc.backend.cpu.cost import own_cost
from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.rewrite import statements, walk_statements

# Operations of a block: a loop of at most so many doesn't check, such as a GEMM's over k.
SHORT = 1 << 20

# Operations between two checks in an innermost loop, and in any loop: microseconds, and milliseconds, unless they wait
# for memory. A loop around one that may be long checks after a few turns.
APART, MOST = 1 << 16, 1 << 22
FEW = 16

# Turns of a `while` between two checks: in a tight loop that checked at each turn, the check took a third of the time.
TURNS = 8


def turns_between_looks(kernel: ir.Kernel, vectors: int) -> dict[Variable, int]:
    """For each loop that checks for signals, by its variable: the number of turns between two checks."""
    loops = [node for node in walk_statements(kernel.body) if isinstance(node, ir.For)]
    if not loops:
        return {}
    is_known = all(trip_count(loop) is not None for loop in loops)
    looks = _Looks(vectors)
    looks.cost(kernel.body, None if is_known else Facts.empty(kernel))
    return looks.turns


class _Looks:
    def __init__(self, vectors: int) -> None:
        self.vectors = vectors
        self.turns: dict[Variable, int] = {}

    def cost(self, statement: Statement, facts: Facts | None) -> int:
        """The most operations that pass without a check, for all vectors of the block."""
        if isinstance(statement, ir.For):
            return self._cost_of_loop(statement, facts)
        below = sum([self.cost(inner, facts) for inner in statements(statement)])
        if facts is not None and isinstance(statement, ir.Let):
            facts.enter(statement)
        turns = TURNS if isinstance(statement, ir.While) else 1
        return turns * (own_cost(statement) * self.vectors + below)

    def _cost_of_loop(self, loop: ir.For, facts: Facts | None) -> int:
        trips = _most_trips(loop, facts)
        turn = self.vectors + self.cost(loop.body, None if facts is None else facts.enter(loop))
        if trips * turn > SHORT:
            trips = self.turns[loop.variable] = max(APART // turn, min(FEW, MOST // turn), 1)
        return own_cost(loop) * self.vectors + trips * turn


def _most_trips(loop: ir.For, facts: Facts | None) -> int:
    """An upper bound of a loop's trip count, from its bounds and their type."""
    trips = trip_count(loop)
    if trips is not None:
        return trips
    assert facts is not None
    dtype = loop.variable.dtype
    far = int(dtype.maximum) - int(dtype.minimum)
    distances = [
        facts.interval(
            ir.Binary("-", *((stop, loop.start) if loop.step > 0 else (loop.start, stop)))
        )
        for stop in _ends(loop.stop, "min" if loop.step > 0 else "max")
    ]
    most = min([far if distance.high is None else distance.high for distance in distances])
    return -(-max(0, most) // abs(loop.step))


def _ends(stop: Expression, nearest: str) -> tuple[Expression, ...]:
    """The bounds that a loop doesn't pass: both operands of min(a, b)."""
    if isinstance(stop, ir.Binary) and stop.operator == nearest:
        return *_ends(stop.left, nearest), *_ends(stop.right, nearest)
    return (stop,)
