"""Products of matrices with rows of odd lengths: copies whose rows begin well, and a product of those.

Wide accesses and bulk copies want rows at multiples of 16 bytes. The copies take as long as reading and
writing each operand once; of large matrices that is little beside the product.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType
from taskc.kernels.padding import pad, pitch
from taskc.kernels.tiles_matmul import Extent, tiles_matmul

_SHORTEST = 512


def is_worth_padding(
    m: Extent,
    n: Extent,
    k: Extent,
    dtype: DType,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> bool:
    """Whether rows of an operand begin badly, and the product is much more than a copy."""
    is_large = all(isinstance(extent, int) and extent >= _SHORTEST for extent in (m, n, k))
    rows = (m if transpose_a else k, k if transpose_b else n)  # how long those of a and b are
    return is_large and any(pitch(length, dtype) != length for length in rows)


def padded_matmul(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DType,
    total: DType | None = None,
    result: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: bool = False,
    **options: Any,
) -> tc.ProgramDefinition:
    """A program with the parameters of `tiles_matmul`; operands that lie well are taken as they are."""
    product = tiles_matmul(
        m, n, k,
        dtype=dtype, total=total, result=result, transpose_a=transpose_a, transpose_b=transpose_b,
        bias=bias, padded=True, **options,
    )  # fmt: skip
    left = (k, m) if transpose_a else (m, k)
    right = (n, k) if transpose_b else (k, n)
    total = total or dtype
    into = result or total

    def lying_well(x: Any, shape: tuple[int, int]) -> Any:
        wide = pitch(shape[1], dtype)
        if wide == shape[1]:
            return x
        copy = tc.empty(dtype[shape[0], wide])
        pad(*shape, dtype)(x, out=copy)
        return copy

    if bias:

        @tc.program
        def matmul(a: dtype[left], b: dtype[right], offsets: total[n], c: tc.out[into[m, n]]):
            product(lying_well(a, left), lying_well(b, right), offsets, out=c)
    else:

        @tc.program
        def matmul(a: dtype[left], b: dtype[right], c: tc.out[into[m, n]]):
            product(lying_well(a, left), lying_well(b, right), out=c)

    return matmul
