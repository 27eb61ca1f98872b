"""The choice of loops to unroll.

acc: a REGISTER array                   acc: a REGISTER array
for i in range(0, 64):           ->     for i in unroll(0, 64):
    acc[i] = acc[i] + x[i]                  acc[i] = acc[i] + x[i]

A register has no address: a loop whose variable is part of a REGISTER index must be unrolled,
however long it is. So is a loop of at most 16 iterations, with constant bounds, whose unrolled
body stays small (`Target.unroll_limit`): the loop's overhead (an add, a compare, a branch) would
matter for a short body, and a few loads are then in flight at a time. More iterations would take
registers and code for no gain. Such loops keep their form, as kind "unroll", for the backends to
unroll. Only loops of at most `Options.limit` iterations are expanded here.

A loop in which workers wait at an mbarrier is not unrolled: an iteration takes as long as the wait, and
copies would only take the compiler's time and room in the instruction cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskc.analysis.touches import seen_through
from taskc.ir import nodes as ir
from taskc.ir.code_size import CodeSizes, trip_count
from taskc.ir.nodes import Constant, Expression, Kernel, Statement, Variable
from taskc.ir.rewrite import copy, map_statements, substitute, walk
from taskc.ir.target import TARGETS


@dataclass(frozen=True, slots=True)
class Options:
    """limit: most iterations of a loop that is expanded here. trips: most iterations of a small loop."""

    limit: int = 1
    trips: int = 16


DEFAULT = Options()


def unroll(kernel: Kernel, *, options: Options = DEFAULT) -> Kernel:
    """Mark the loops to be unrolled, as the head of this file shows."""
    unroll_limit = TARGETS[kernel.target].unroll_limit
    pass_ = _Unroller(options, unroll_limit, _register_indices(kernel.body))
    body = pass_.visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _register_indices(body: Statement) -> set[Variable]:
    """The variables that decide which register is accessed, through Lets too."""
    indices: list[Expression] = []
    definitions: dict[Variable, Expression] = {}
    for node in walk(body):
        if isinstance(node, ir.Let):
            definitions[node.variable] = node.value
        elif (
            isinstance(node, (ir.Read, ir.Store, ir.Address, ir.Atomic))
            and node.tensor.scope == ir.REGISTER
        ):
            indices += node.indices
    return {part for part in seen_through(indices, definitions) if isinstance(part, Variable)}


class _Unroller:
    def __init__(self, options: Options, unroll_limit: int, registers: set[Variable]) -> None:
        self.options = options
        self.unroll_limit = unroll_limit
        self.registers = registers
        self.sizes = CodeSizes()

    def visit(self, node: Statement) -> Statement:
        node = map_statements(node, self.visit)
        if not isinstance(node, ir.For) or node.kind == "vector":
            return node
        trips = trip_count(node)
        if trips is None:
            return node
        if trips <= self.options.limit:
            return _written_out(node)
        if node.kind == "serial" and (
            node.variable in self.registers or self._is_small(node, trips)
        ):
            return replace(node, kind="unroll")
        return node

    def _is_small(self, loop: ir.For, trips: int) -> bool:
        if trips > self.options.trips:
            return False
        size = self.sizes.of(loop.body)
        return size is not None and size * trips <= self.unroll_limit


def _written_out(loop: ir.For) -> Statement:
    """One copy of the body for each iteration, each a scope of its own."""
    assert isinstance(loop.start, Constant)
    assert isinstance(loop.stop, Constant)
    positions = range(int(loop.start.value), int(loop.stop.value), loop.step)
    copies: list[Statement] = []
    for position in positions:
        values: dict[Variable, Expression] = {
            loop.variable: Constant(position, loop.variable.dtype)
        }
        # The first copy may keep the identities of its bindings.
        body = copy(loop.body, values) if copies else substitute(loop.body, values)
        copies.append(body)
    return copies[0] if len(copies) == 1 else ir.Sequence(tuple(copies), loc=loop.loc)
