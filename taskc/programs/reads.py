"""Estimate the number of elements of its inputs that a kernel reads: each read times the trip counts of its loops.

A loop's trip count is that of the first iteration of the loops around it. Both branches of an If count. A size known
only at a call counts as a typical one. The number is used only to weigh costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, statements, walk
from taskc.programs.work import TYPICAL_SIZE, size_at_a_call

TYPICAL_TIMES = 64  # trip count of a loop of unknown length


def reads_of(kernel: Kernel, tensors: frozenset[Tensor]) -> int:
    """The total number of elements read from some tensors."""
    estimate = Estimate(kernel)
    total = 0
    pending: list[tuple[Statement, int]] = [(kernel.body, 1)]
    while pending:
        node, times = pending.pop()
        inside = times * estimate.times(node)
        executions = inside if isinstance(node, ir.Move | ir.While) else times
        reads = {
            id(part)
            for expression in expressions(node)
            for part in walk(expression)
            if isinstance(part, ir.Read) and part.tensor in tensors
        }
        total += executions * len(reads)
        pending += [(below, inside) for below in statements(node)]
    return total


class Estimate:
    """Approximate values of a kernel's numbers, with the given sizes, or typical ones."""

    def __init__(self, kernel: Kernel, sizes: Mapping[Variable, int] | None = None) -> None:
        self.sizes = {**dict.fromkeys(kernel.dimensions, TYPICAL_SIZE), **(sizes or {})}
        self.names = {
            node.variable: node.value for node in walk(kernel.body) if isinstance(node, ir.Let)
        }

    def times(self, node: Statement) -> int:
        """The number of times that a statement's body runs, for all workers together."""
        match node:
            case ir.Grid():
                tiles = zip(node.shape, node.by, strict=True)
                return prod([ceil(size_at_a_call(extent) / by) for extent, by in tiles])
            case ir.Each():
                return node.mapping.workers * node.mapping.slots
            case ir.Move():
                return prod(node.shape)
            case ir.For():
                start, stop = self.number(node.start), self.number(node.stop)
                return self.steps(start, stop, node.step)
            case ir.Pipeline():
                return self.steps(0, self.number(node.extent), node.by)
            case ir.While():
                return TYPICAL_TIMES
        return 1

    def steps(self, start: int | None, stop: int | None, step: int) -> int:
        if start is None or stop is None:
            return TYPICAL_TIMES
        return max(0, ceil((stop - start) / step))

    def extent(self, extent: int | Expression) -> int:
        """An extent of a tensor or a grid, which depends on sizes alone."""
        return extent if isinstance(extent, int) else extent_value(extent, self.sizes)

    def number(self, value: Expression) -> int | None:
        match value:
            case ir.Constant():
                return int(value.value)
            case Variable():
                if value in self.names:
                    return self.number(self.names[value])
                return self.sizes.get(value, 0)
            case ir.Cast():
                return self.number(value.operand)
            case ir.Binary():
                left, right = self.number(value.left), self.number(value.right)
                return None if left is None or right is None else _computed(value, left, right)
        return None


def _computed(value: ir.Binary, left: int, right: int) -> int | None:
    match value.operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//" if right:
            return left // right
        case "%" if right:
            return left % right
        case "min":
            return min(left, right)
        case "max":
            return max(left, right)
    return None
