"""traffic: count a kernel's loads and operations at given sizes, from its IR.

    for row in grid:                      rows * n * 2 elements of x are loaded: those that the second
        for j in range(n): total += x[row, j]                      loop loads again count again
        for j in range(n): y[row, j] = x[row, j] / total           rows * n operations each

A load counts once for each turn of the loops down to the innermost one that its index depends on: inside that loop it
is in a register. Tiles at the edges of an output count in part. Of the branches of an If, the heavier one counts. A
trip count that depends on data counts as a typical one. Operations on values count, with two for a fused multiply-add;
operations on indices don't.

Estimate the number of elements of its inputs that a kernel reads: each read times the trip counts of its loops.

A loop's trip count is that of the first iteration of the loops around it. Both branches of an If count. A size known
only at a call counts as a typical one. The number is used only to weigh costs.

The costs of expressions and of memory traffic, which decide whether to compute a value again.

They depend on the operations of an element, the number of elements, and the bytes that needn't be moved. A size known
only at a call counts as a typical one.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import ceil, prod
from typing import TypeVar

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BIT_COUNTS
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.rewrite import all_below, expressions, operands_first, statements, walk
from taskc.ir.types import DType, boolean, i64
from taskc.programs.ir import variables_in

# Operations in the time that a byte takes to memory and back: about those of one vector core, with a margin for what
# else a fused kernel does worse.
_OPERATIONS_PER_BYTE = 4
# Bytes that stay in a core's caches between two kernels, where moving a byte costs an operation.
_CACHED = 1 << 20
_CALL = 5_000  # operations in the time of one more call
TYPICAL_SIZE = 512
# Limits of a fused expression. Each step of fusion visits all of it, so a long chain would take quadratic time.
_MOST_PARTS = 1500
_MOST_LEVELS = 128
_SIMPLE = frozenset({"-", "not", "~", "abs", "floor", "ceil", "trunc", "isnan"}) | BIT_COUNTS
# The cost of each operator on a vector of f32, by throughput; functions that aren't listed cost 24.
_OPERATIONS = {
    "//": 4, "%": 4, "exp": 16, "exp2": 14, "fast_exp2": 14, "/": 20, "log": 34, "log2": 34, "sigmoid": 38,
    "tanh": 40, "sinh": 40, "rsqrt": 44, "tan": 48, "log1p": 52, "erf": 70, "atanh": 90, "acosh": 100,
    "asinh": 116, "pow": 230,
}  # fmt: skip


def operations_of(value: Expression) -> int:
    """The operations of one evaluation, each distinct part once; simple index arithmetic is negligible."""
    return sum([operations_of_node(node) for node in operands_first(value)])


def operations_of_node(node: Expression) -> int:
    match node:
        case ir.Unary():
            return 1 if node.operator in _SIMPLE else _OPERATIONS.get(node.operator, 24)
        case ir.Binary():
            return 24 if node.operator == "atan2" else _OPERATIONS.get(node.operator, 1)
        case ir.Constant() | Variable():
            return 0
    return 1


def without_indices(value: Expression) -> list[Expression]:
    """The distinct parts of a value, operands first, without those of indices."""
    return operands_first(
        value, lambda node: () if isinstance(node, ir.Read) else expressions(node)
    )


def is_small(value: Expression) -> bool:
    """Whether an expression is within the limits of a fused one; a larger one stays several kernels.

    Parts that occur several times count each time: this is the size of its text.
    """
    sizes: dict[int, tuple[int, int]] = {}
    for node in operands_first(value):
        parts, levels = 1, 0
        for part in expressions(node):
            more, below = sizes[id(part)]
            parts, levels = parts + more, max(levels, below)
        sizes[id(node)] = parts, levels + 1
    parts, levels = sizes[id(value)]
    return parts <= _MOST_PARTS and levels <= _MOST_LEVELS


def elements_of(shape: Sequence[int | Expression]) -> int:
    return prod([size_at_a_call(extent) for extent in shape])


def size_at_a_call(extent: int | Expression) -> int:
    if isinstance(extent, int):
        return extent
    return max(0, extent_value(extent, dict.fromkeys(variables_in(extent), TYPICAL_SIZE)))


def is_worth(repeated: int, operations: int, memory: Tensor, passes: int) -> bool:
    """Whether evaluating a value `repeated` times more is cheaper than going over the memory `passes` times."""
    return repeated * operations <= bytes_weighed(memory, passes)


def bytes_weighed(memory: Tensor, passes: int) -> int:
    """The operations in the time of going over some memory `passes` times, and of one more call."""
    rate = 1 if is_cached(memory) else _OPERATIONS_PER_BYTE
    return _CALL + _bytes(memory) * passes * rate


def is_cached(memory: Tensor, parts: int = 1) -> bool:
    """Whether `parts` arrays of this size stay in a core's caches between two kernels."""
    return _bytes(memory) * parts <= _CACHED


def _bytes(memory: Tensor) -> int:
    return memory.dtype.bytes_of(elements_of(memory.shape))


TYPICAL_TIMES = 64  # trip count of a loop of unknown length
_ON_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "+": python.add, "-": python.sub, "*": python.mul, "//": python.floordiv, "%": python.mod, "min": min, "max": max,
}  # fmt: skip


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
        self.names = {node.variable: node.value for node in all_below(kernel.body, ir.Let)}

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
                function = _ON_NUMBERS.get(value.operator)
                if function is None or left is None or right is None:
                    return None
                is_defined = right != 0 or value.operator not in ("//", "%")
                return function(left, right) if is_defined else None
        return None


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
        names = {*variables_in(*places)}
        return names.union(*[self.behind[name] for name in names if name in self.behind])

    def value(self, value: Expression, around: _Around) -> None:
        """Count a value's loads and operations; a part that occurs several times counts once."""
        every = _every(around)
        for node in without_indices(value):
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
