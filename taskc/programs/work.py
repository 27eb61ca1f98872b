"""The costs of expressions and of memory traffic, which decide whether to compute a value again.

They depend on the operations of an element, the number of elements, and the bytes that needn't be moved. A size known
only at a call counts as a typical one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BIT_COUNTS
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import expressions, operands_first, walk

# Operations in the time that a byte takes to memory and back: about those of one vector core, with a margin for what
# else a fused kernel does worse.
_OPERATIONS_PER_BYTE = 4
_CACHED = (
    1 << 20
)  # bytes that stay in a core's caches between two kernels, where moving a byte costs an operation
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
    sizes = {node: TYPICAL_SIZE for node in walk(extent) if isinstance(node, Variable)}
    return max(0, extent_value(extent, sizes))


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
