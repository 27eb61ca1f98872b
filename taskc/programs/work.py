"""How much work an expression is, and what memory costs beside it: what decides whether to compute a value again.

Counted are the operations of an element, the elements, and the bytes that are not moved; a size that only a call
tells counts as a typical one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BIT_COUNTS
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import expressions, operands_first, walk

# Operations in the time that a byte takes to memory and back: those of a core and a vector, about, with what else a
# fused kernel then does worse.
_OPERATIONS_PER_BYTE = 4
_CACHED = (
    1 << 20
)  # bytes that stay in a core's caches between two kernels, where a byte takes an operation
_CALL = 5_000  # operations in the time that a call more takes
TYPICAL_SIZE = 512
# Of a fused expression. A step of fusion goes over all of it: a chain takes time for its length times the levels.
_MOST_PARTS = 1500
_MOST_LEVELS = 128
_SIMPLE = frozenset({"-", "not", "~", "abs", "floor", "ceil", "trunc", "isnan"}) | BIT_COUNTS
# In the time of one function, as a vector of f32 takes it where others wait for nothing; of those not named here, 24.
_OPERATIONS = {
    "//": 4, "%": 4, "exp": 16, "exp2": 14, "fast_exp2": 14, "/": 20, "log": 34, "log2": 34, "sigmoid": 38,
    "tanh": 40, "sinh": 40, "rsqrt": 44, "tan": 48, "log1p": 52, "erf": 70, "atanh": 90, "acosh": 100,
    "asinh": 116, "pow": 230,
}  # fmt: skip


def operations_of(value: Expression) -> int:
    """The operations of one evaluation, each distinct part once; an index that is a sum is not worth counting."""
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
    """Whether an expression is no larger than a fused one may be: what would be larger stays several kernels.

    Parts that it has several times count as often: it is the size of its text.
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
    """Whether to evaluate a value `repeated` times more, so that the memory need not be gone over `passes` times."""
    return repeated * operations <= bytes_weighed(memory, passes)


def bytes_weighed(memory: Tensor, passes: int) -> int:
    """The operations in the time that it takes to go over some memory so often, for a call more."""
    rate = 1 if is_cached(memory) else _OPERATIONS_PER_BYTE
    return _CALL + _bytes(memory) * passes * rate


def is_cached(memory: Tensor, parts: int = 1) -> bool:
    """Whether a core's caches keep, between two kernels, so many arrays as large as this one."""
    return _bytes(memory) * parts <= _CACHED


def _bytes(memory: Tensor) -> int:
    return memory.dtype.bytes_of(elements_of(memory.shape))
