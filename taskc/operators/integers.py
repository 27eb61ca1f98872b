"""Sums of products of bytes, exact in i32, by instructions that multiply packed unsigned bytes by signed ones.

    sum((a - p) * (b - q))  =  sum(a * b) - p * (sum(b) - k * q) - q * sum(a)        p, q  the zero points

so that bytes are multiplied unchanged. The sums of a constant b are computed once, and those of a are needed only where
q isn't 0. An unsigned b is made signed by subtracting 128 from it and from q.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, cast

import numpy as np

import taskc as tc
from taskc import DType, f32, i8, i32, u8
from taskc.ir.types import from_numpy
from taskc.kernels.matmul import product
from taskc.kernels.reductions import reduction
from taskc.operators.call import Tensor, dtype_of, handle_of, now
from taskc.operators.graph import Array
from taskc.operators.operands import computed, constant_of, reshaped, size, template
from taskc.programs.tracing import TensorHandle

Number = Callable[[Any], Any]  # a function of a row, a column, or a feature

_HALF = 128
_EXACT = 1 << 24  # f32 represents smaller integers exactly
_product = template(product)
_reduction = template(reduction)


def are_bytes(*tensors: Tensor) -> bool:
    return all(dtype_of(x) in (i8, u8) for x in tensors)


def exact_type(k: Any) -> DType:
    """The type that holds the sum of k products of byte differences: f32 where that is exact, as it is faster."""
    return f32 if isinstance(k, int) and k * 255**2 < _EXACT else i32


def sums_of_bytes(
    a: Tensor, b: Tensor, zero_a: Tensor | None, zero_b: Tensor | None
) -> TensorHandle | None:
    """(a[..., m, k] - zero_a) @ (b[..., k, n] - zero_b) for one matrix b; None where there is no such kernel.

    zero_a  one number for all rows, or one for each;  zero_b  the same for columns
    """
    if len(a.shape) < 2 or len(b.shape) < 2 or not are_bytes(a, b):
        return None
    if not tc.machine().is_processor:
        return None
    *before, m, k = a.shape
    rows, n = prod(before) * m, b.shape[-1]
    of_a, of_b = number_of(zero_a, rows), number_of(zero_b, n)
    sizes = rows, n, k, size(b.shape)
    if (
        of_a is None
        or of_b is None
        or not all(isinstance(extent, int) and extent for extent in sizes)
    ):
        return None
    if size(b.shape) != k * n:
        return None
    left = reshaped(handle_of(a), rows, k)
    right, less = signed(reshaped(b, k, n))
    is_packed = isinstance(right, np.ndarray)
    kernel = _product(rows, n, k, dtype=left.dtype, right=i8, total=i32, packed=is_packed)
    sums: TensorHandle = kernel(left, right)
    moved = tc.function(lambda j: of_b(j) - less)
    if not is_zero(zero_a):
        sums = _without_left(sums, of_a, summed(right, 0), moved, k)
    if less or not is_zero(zero_b):
        sums = _without_right(sums, moved, summed(left, 1))
    return reshaped(sums, *before, m, n)


def _without_left(
    sums: TensorHandle, of_a: Number, of_columns: TensorHandle, of_b: Number, k: int
) -> TensorHandle:
    return computed(sums.shape, lambda i, j: sums[i, j] - of_a(i) * (of_columns[j] - k * of_b(j)))


def _without_right(sums: TensorHandle, of_b: Number, of_rows: TensorHandle) -> TensorHandle:
    return computed(sums.shape, lambda i, j: sums[i, j] - of_b(j) * of_rows[i])


def signed(b: Tensor) -> tuple[Tensor, int]:
    """Bytes as signed ones, and the number that was subtracted from them."""
    if dtype_of(b) is i8:
        return b, 0
    if isinstance(b, np.ndarray):
        return constant_of(b, _halved, i8), _HALF
    return computed(b.shape, lambda *at: _halved(b[at])), _HALF


@tc.function
def _halved(byte):
    return (byte.to(i32) - _HALF).to(i8)


def summed(x: Tensor, axis: int) -> TensorHandle:
    """The sums of a matrix of bytes along an axis; those of a constant are computed now."""
    if isinstance(x, np.ndarray):
        return cast("TensorHandle", tc.constant(now(lambda: _sums(from_numpy(x.dtype), axis)(x))))
    wide = computed(x.shape, lambda i, j: x[i, j].to(i32))
    return cast("TensorHandle", _reduction("sum", x.shape, (axis,), dtype=i32)(wide))


@cache
def _sums(dtype: DType, axis: int) -> Callable[[Array], Array]:
    m, n = tc.dim("m"), tc.dim("n")
    fold = reduction("sum", (m, n), (axis,), dtype=i32)

    @tc.program
    def sums(x: dtype[m, n], y: tc.out[i32[n if axis == 0 else m]]):
        wide = tc.compute(x.shape, lambda i, j: x[i, j].to(i32))
        fold(wide, out=y)

    return cast("Callable[[Array], Array]", sums)


def number_of(zero: Tensor | None, count: int) -> Number | None:
    """A zero point as i32: one for all, or one for each of `count`; None for any other number of them."""
    if zero is None:
        return tc.function(lambda place: i32(0))
    numbers = size(zero.shape)
    if numbers not in (1, count):
        return None
    line = reshaped(handle_of(zero), numbers)
    is_alone = numbers == 1
    return tc.function(lambda place: line[0 if is_alone else place].to(i32))


def is_zero(zero: Tensor | None) -> bool:
    """Whether a zero point is known to be 0."""
    return zero is None or (isinstance(zero, np.ndarray) and not any(zero.reshape(-1).tolist()))
