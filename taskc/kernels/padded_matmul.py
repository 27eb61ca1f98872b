"""Products of large matrices that don't lie as they should: copies that do, and a product of those.

Wide accesses and bulk copies want rows at multiples of 16 bytes: a copy has zeros behind odd rows. Instructions
for operands that aren't of 16 bits want neighbours along k: a copy of others is turned. Copies take as
long as reading and writing each operand once; of large matrices that is little beside the product.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, Machine
from taskc.kernels.padding import pad, pitch
from taskc.kernels.tiles_matmul import Extent, tiles_matmul
from taskc.kernels.transpose import transpose

_SHORTEST = 512


def is_worth_copying(
    m: Extent,
    n: Extent,
    k: Extent,
    types: tuple[DType, DType, DType],
    machine: Machine,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> bool:
    """Whether an operand lies badly, and the product is much more than a copy.

    types  of a, b and the sum
    """
    is_large = all(isinstance(extent, int) and extent >= _SHORTEST for extent in (m, n, k))
    rows = (m if transpose_a else k, k if transpose_b else n)  # how long those of a and b are
    is_odd = is_large and any(
        pitch(length, dtype) != length for length, dtype in zip(rows, types[:2], strict=True)
    )
    is_across = transpose_a or not transpose_b
    return is_odd or (is_large and is_across and _wants_k(types, machine))


def _wants_k(types: tuple[DType, DType, DType], machine: Machine) -> bool:
    """Whether operands with neighbours along k are worth a copy.

    Of 8 bits others would be put together from single bytes; of 32 bits they rule out the instructions that
    run beside their workers.
    """
    rows = machine.instructions(*types)
    size = types[0].nbytes
    return bool(rows) and (size == 1 or (size == 4 and any(row.asynchronous for row in rows)))


def padded_matmul(
    m: int,
    n: int,
    k: int,
    *,
    machine: Machine,
    dtype: DType,
    right: DType | None = None,
    total: DType | None = None,
    result: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: bool = False,
    **options: Any,
) -> tc.ProgramDefinition:
    """A program with the parameters of `tiles_matmul`; operands that lie well are taken as they are."""
    total, right_type = total or dtype, right or dtype
    into = result or total
    is_turned = _wants_k((dtype, right_type, total), machine)
    product = tiles_matmul(
        m, n, k,
        machine=machine, dtype=dtype, right=right, total=total, result=result,
        transpose_a=transpose_a and not is_turned, transpose_b=transpose_b or is_turned,
        bias=bias, padded=True, **options,
    )  # fmt: skip
    left = dtype[(k, m) if transpose_a else (m, k)]
    other = right_type[(n, k) if transpose_b else (k, n)]

    def lying_well(x: Any, *, is_across: bool) -> Any:
        """With neighbours along k, if they have to be and are not, and even rows."""
        if is_across and is_turned:
            x = transpose(x.shape, dtype=x.dtype, machine=machine)(x)
        rows, columns = x.shape
        wide = pitch(columns, x.dtype)
        if wide == columns:
            return x
        copy = tc.empty(x.dtype[rows, wide])
        pad(rows, columns, x.dtype, machine)(x, out=copy)
        return copy

    if bias:

        @tc.program
        def matmul(a: left, b: other, offsets: total[n], c: tc.out[into[m, n]]):
            near = lying_well(a, is_across=transpose_a), lying_well(b, is_across=not transpose_b)
            product(*near, offsets, out=c)
    else:

        @tc.program
        def matmul(a: left, b: other, c: tc.out[into[m, n]]):
            near = lying_well(a, is_across=transpose_a), lying_well(b, is_across=not transpose_b)
            product(*near, out=c)

    return matmul
