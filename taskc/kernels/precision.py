"""The types that templates compute in, and those of their results, where a call doesn't say them.

    operands       sums   results
    f8, f16, bf16  f32    the operands' type, rounded once
    tf32           f32    f32
    f32, f64       the operands' type
    i8 ... u16     i32    i32
    i32 ... u64    the operands' type

A call that says `total` and no `result` gets what was summed.
"""

from __future__ import annotations

from typing import Any

from taskc import DType, f32, i32, tf32

# Numbers that are summed one after the other, at most; of more there are partial sums, which are added up. A long sum
# grows until what is added to it is little more than its last place, and of that always the same side is lost.
LONG_SUM = 1 << 12


def is_long(count: Any) -> bool:
    """Whether so many numbers, an int or a tc.dim, may be more than are summed one after the other."""
    return not isinstance(count, int) or count > LONG_SUM


def wide(dtype: DType) -> DType:
    """The type that numbers are folded in: 16 bits would lose most of a long sum."""
    return f32 if dtype is tf32 or (dtype.is_float and dtype.bits < f32.bits) else dtype


def types_of_products(
    dtype: DType, total: DType | None = None, result: DType | None = None
) -> tuple[DType, DType]:
    """The types of sums of products of such operands, and of their results."""
    is_narrow = dtype.is_integer and dtype.bits < i32.bits
    summed = total or (i32 if is_narrow else wide(dtype))
    is_rounded = total is None and dtype.is_float and dtype is not tf32
    return summed, result or (dtype if is_rounded else summed)
