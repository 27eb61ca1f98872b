"""traffic: count a kernel's loads and operations at given sizes, from its IR.

    for row in grid:                      rows * n * 2 elements of x are loaded: those that the second
        for j in range(n): total += x[row, j]                      loop loads again count again
        for j in range(n): y[row, j] = x[row, j] / total           rows * n operations each

A load counts once for each turn of the loops down to the innermost one that its index depends on: inside that loop it
is in a register. Tiles at the edges of an output count in part. Of the branches of an If, the heavier one counts. A
trip count that depends on data counts as a typical one. Operations on values count, with two for a fused multiply-add;
operations on indices don't.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import TypeVar

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, statements, walk
from taskc.ir.types import DType, boolean, i64
from taskc.programs.reads import TYPICAL_TIMES, Estimate
from taskc.programs.work import size_at_a_call

Types = tuple[DType, DType, DType]
_NOT_COUNTED = (boolean, i64)  # types of conditions and indices


@dataclass(slots=True)
class Traffic:
    """The loads and operations of a kernel.

    loaded      elements, by parameter
    operations  by the type of their result
    products    multiply-adds of matrix instructions, by the types of operands and sum

    """

    loaded: dict[Tensor, float] = field(default_factory=dict)
    operations: dict[DType, float] = field(default_factory=dict)
    products: dict[Types, float] = field(default_factory=dict)

    def add(self, other: Traffic) -> None:
        for tensor, count in other.loaded.items():
            _add(self.loaded, tensor, count)
        for dtype, count in other.operations.items():
            _add(self.operations, dtype, count)
        for types, count in other.products.items():
            _add(self.products, types, count)

    @property
    def bytes(self) -> float:
        """The bytes loaded in all."""
        return sum(count * tensor.dtype.bits / 8 for tensor, count in self.loaded.items())

    @property
    def weight(self) -> tuple[float, float]:
        """The order of an If's branches."""
        return sum(self.operations.values()) + 2 * sum(self.products.values()), self.bytes


Key = TypeVar("Key")


def _add(counts: dict[Key, float], key: Key, count: float) -> None:
    counts[key] = counts.get(key, 0.0) + count


def traffic(kernel: Kernel, sizes: Mapping[Variable, int]) -> Traffic:
    """The traffic of a kernel at stage parsed, given its dimensions."""
    count = _Count(kernel, sizes)
    count.statement(kernel.body, ())
    return count.found


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop's trip counts by variable; a partial tile counts as a fraction.

    is_one  the turns are the tasks of a mapping: tasks that differ in other variables share a register
    """

    turns: dict[Variable, float]
    is_one: bool = False

    @property
    def every(self) -> float:
        return prod(self.turns.values())

    def whole(self, apart_from: set[Variable]) -> int:
        """The trip count of all variables but some, rounded up."""
        return prod([ceil(n) for variable, n in self.turns.items() if variable not in apart_from])


_Around = tuple[_Loop, ...]


class _Count:
    """behind  the loop variables that a name depends on"""

    def __init__(self, kernel: Kernel, sizes: Mapping[Variable, int]) -> None:
        self.found = Traffic()
        self.estimate = Estimate(kernel, sizes)
        self.parameters = {item for item in kernel.parameters if isinstance(item, Tensor)}
        self.behind: dict[Variable, set[Variable]] = {}

    def statement(self, node: Statement, around: _Around) -> None:
        loop = self.loop(node)
        inside = around if loop is None else (*around, loop)
        value_loops = inside if isinstance(node, ir.Move) else around
        value = node.value if isinstance(node, ir.Let | ir.Store | ir.Atomic | ir.Move) else None
        for part in expressions(node):
            if part is value:
                self.value(part, value_loops)
            else:
                self.loads(part, value_loops)
        match node:
            case ir.Let():
                self.behind[node.variable] = self.used((node.value,))
            case ir.Mma():
                self.product(node, around)
            case ir.Reduce() | ir.Scan():
                elements = prod([size_at_a_call(extent) for extent in node.sources[0].shape])
                for source in node.sources:
                    self.operate(source.dtype, elements * _every(around))
            case _:
                pass  # values were counted above, and bodies are below
        if isinstance(node, ir.If) and node.otherwise is not None:
            branches = [self.branch(below, around) for below in (node.then, node.otherwise)]
            self.found.add(max(branches, key=lambda branch: branch.weight))
            return
        for below in statements(node):
            self.statement(below, inside)

    def branch(self, node: Statement, around: _Around) -> Traffic:
        """The traffic of one branch alone."""
        before, self.found = self.found, Traffic()
        self.statement(node, around)
        branch_traffic, self.found = self.found, before
        return branch_traffic

    def loop(self, node: Statement) -> _Loop | None:
        steps = self.estimate.steps
        match node:
            case ir.Grid():
                extents = [self.estimate.extent(extent) for extent in node.shape]
                tiles = [max(0, size) / by for size, by in zip(extents, node.by, strict=True)]
                return _Loop(dict(zip(node.variables, tiles, strict=True)))
            case ir.Each():
                return _Loop(dict(zip(node.variables, node.mapping.iterated, strict=True)), True)
            case ir.Move():
                return _Loop(dict(zip(node.variables, node.shape, strict=True)), True)
            case ir.Pipeline():
                number = self.estimate.number(node.extent)
                return _Loop({node.variable: steps(0, number, node.by)})
            case ir.For():
                start, stop = self.estimate.number(node.start), self.estimate.number(node.stop)
                return _Loop({node.variable: steps(start, stop, node.step)})
            case ir.While():
                return _Loop({Variable("turn"): TYPICAL_TIMES})
        return None

    def used(self, places: tuple[Expression, ...]) -> set[Variable]:
        """The loop variables that some indices depend on."""
        names = {node for place in places for node in walk(place) if isinstance(node, Variable)}
        return names.union(*[self.behind[name] for name in names if name in self.behind])

    def value(self, value: Expression, around: _Around) -> None:
        """Count a value's loads and operations; a part that occurs several times counts once."""
        every = _every(around)
        for node in _parts(value):
            match node:
                case ir.Fused():
                    self.operate(node.dtype, 2 * every)
                case ir.Unary() | ir.Binary():
                    self.operate(node.dtype, every)
                case _:
                    pass  # a name, a choice, a conversion or a load: no operation
        self.loads(value, around)

    def operate(self, dtype: DType, count: float) -> None:
        if dtype not in _NOT_COUNTED:
            _add(self.found.operations, dtype, count)

    def loads(self, part: Expression, around: _Around) -> None:
        for node in walk(part):
            if isinstance(node, ir.Read) and node.tensor in self.parameters:
                _add(self.found.loaded, node.tensor, _times(self.used(node.indices), around))

    def product(self, node: ir.Mma, around: _Around) -> None:
        (rows, depth), (_, columns) = node.left.shape, node.right.shape
        types = node.left.tensor.dtype, node.right.tensor.dtype, node.accumulator.dtype
        _add(self.found.products, types, rows * depth * columns * _every(around))
        for operand in (node.left, node.right):
            if operand.tensor in self.parameters:
                times = _times(self.used(operand.origin), around)
                _add(self.found.loaded, operand.tensor, prod(operand.shape) * times)


def _every(around: _Around) -> float:
    return prod([loop.every for loop in around])


def _times(used: set[Variable], around: _Around) -> float:
    """The trip count of the loops down to the innermost one with a variable in `used`."""
    times, between = 1.0, 1
    for loop in around:
        used_counts = [n for variable, n in loop.turns.items() if variable in used]
        others = loop.whole(used)
        if used_counts:
            times *= between * prod(used_counts) * (1 if loop.is_one else others)
            between = 1
        else:
            between *= others
    return times


def _parts(value: Expression) -> Iterator[Expression]:
    """The distinct parts of a value, without those of indices."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            if not isinstance(node, ir.Read):
                pending += expressions(node)
