"""Rounding to a narrow float is for memory: values that fusion keeps out of memory stay wide.

    scaled: t[i] = (x[i].to(f32) * 2.0).to(f16)
    moved:  y[i] = (t[i].to(f32) + 1.0).to(f16)
->
    scaled_moved: y[i] = (x[i].to(f32) * 2.0 + 1.0).to(f16)

This holds for computations of taskc's own operators, which are `unrounded`: where such a computation widens an element
that it reads, it takes the value that the producer would have rounded. A user's computations are fused to the last
bit. A conversion that a model asks for isn't skipped: its operator hides it.
"""

from __future__ import annotations

from typing import TypeGuard

from taskc.ir.nodes import Cast, Expression, Read
from taskc.ir.rewrite import walk
from taskc.ir.types import bf16, f16, f32
from taskc.programs.ir import Computation

NARROW = (f16, bf16)


def widens(value: Expression) -> bool:
    """Whether a value reads elements of a narrow float, and widens them."""
    return any(
        isinstance(node, Cast)
        and isinstance(node.operand, Read)
        and node.operand.dtype in NARROW
        and node.dtype is f32
        for node in walk(value)
    )


def without_rounding(node: Expression) -> Expression:
    """The value itself where it is rounded to a narrow float, and widened again."""
    if isinstance(node, Cast) and node.dtype is f32 and is_rounded(node.operand):
        return node.operand.operand
    return node


def is_rounded(value: Expression) -> TypeGuard[Cast]:
    """Whether a value was rounded from f32 to a narrow float."""
    return isinstance(value, Cast) and value.dtype in NARROW and value.operand.dtype is f32


def joint(consumer: Computation, producer: Computation, value: Expression) -> bool:
    """Whether the computation with this value, fused of two, is `unrounded`."""
    of_own = (one.unrounded or not widens(one.value) for one in (consumer, producer))
    return all(of_own) and widens(value)
