"""Matrix products: MatMul, Gemm and their quantized variants.

Einsum: diagonals and sums of single operands, then products of matrices, two operands at a time.

Det: determinants of matrices, by Gaussian elimination with partial pivoting.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, f32, i32
from taskc.dataclass import dataclass
from taskc.ir.types import DTYPES, from_numpy
from taskc.kernels.determinants import determinants
from taskc.kernels.matmul import batch_matmul, matmul, product
from taskc.kernels.signatures import wide
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.graph import Array
from taskc.operators.movement import transposed
from taskc.operators.operands import (
    are_equal,
    as_it_is,
    constant_of,
    converted,
    converted_for_all,
    element,
    is_one,
    kernel_of,
    ones,
    repeated,
    widened,
)
from taskc.operators.quantization import exact_type, requantized, sums_of_bytes
from taskc.operators.reductions import folded
from taskc.operators.tensors import Extent, Function, Shape, Tensor, computed, handle_of, reshaped
from taskc.programs.tracing import TensorHandle

_MOST_BATCH_AXES = 3


@operator("MatMul", ranks=(at_least(1), at_least(1)))
def matrix_product(call: Call) -> Tensor:
    call.require_kernel()
    return multiplied(call.given(0), call.given(1), operands=_operands(call))


def _operands(call: Call) -> DType | None:
    """The type to which the user asked to round the operands, or None."""
    name = call.attribute("operands")
    return None if name is None else DTYPES[name]


def multiplied(a: Tensor, b: Tensor, *, operands: DType | None = None) -> TensorHandle:
    """a @ b, as NumPy's: a vector is a row of a, or a column of b, and batch axes broadcast.

    operands  as in `rows_times`, where b is one matrix
    """
    left_shape, right_shape = a.shape, b.shape
    if len(left_shape) == 1:
        a = reshaped(a, 1, *left_shape)
    if len(right_shape) == 1:
        b = reshaped(b, *right_shape, 1)
    product = _stacked(a, b, operands)
    *batch, m, n = product.shape
    shape = [
        *batch,
        *([] if len(left_shape) == 1 else [m]),
        *([] if len(right_shape) == 1 else [n]),
    ]
    return product if len(shape) == len(product.shape) else reshaped(product, *shape)


def rows_times(
    a: TensorHandle, b: Tensor, bias: Tensor | None = None, *, transpose_a: bool = False,
    transpose_b: bool = False, operands: DType | None = None,
) -> TensorHandle:  # fmt: skip
    """a[m, k] @ b[k, n], plus a bias of n elements; a constant b is packed.

    operands  the type to which f32 operands are rounded, where b is constant
    """
    offset = () if bias is None else (widened(bias, a.dtype),)
    if isinstance(b, np.ndarray) and tc.machine().is_processor:
        known = b.T if transpose_b else b
        return _by_packed(a, known, offset, transpose_a=transpose_a, operands=operands)
    m, k = reversed(a.shape) if transpose_a else a.shape
    kernel = kernel_of(
        matmul, m, b.shape[0 if transpose_b else 1], k, dtype=a.dtype, total=wide(a.dtype), result=a.dtype,
        transpose_a=transpose_a, transpose_b=transpose_b, bias=bias is not None,
    )  # fmt: skip
    return kernel(a, b, *offset)


def _by_packed(
    a: TensorHandle, b: Array, offset: tuple[TensorHandle, ...], *, transpose_a: bool,
    operands: DType | None,
) -> TensorHandle:  # fmt: skip
    total, result = wide(a.dtype), a.dtype
    if operands is not None and a.dtype is f32:
        a, b = converted_for_all(a, operands), constant_of(b, as_it_is, operands)
    rows = a.shape[1 if transpose_a else 0]
    right = from_numpy(b.dtype)
    options: dict[str, object] = {"right": right, "total": total, "result": result}
    options |= {"bias": len(offset) > 0, "packed": True}
    if tc.machine().instructions(a.dtype, right, total) and not transpose_a:
        kernel = kernel_of(product, rows, *b.shape[::-1], dtype=a.dtype, **options)
        return kernel(a, b, *offset)
    # b is widened as it is read, once for several rows; a would be widened again for every panel of b, so it is before.
    kernel = kernel_of(
        matmul, rows, *b.shape[::-1], dtype=total, transpose_a=transpose_a, **options
    )
    return kernel(converted_for_all(a, total), b, *offset)


def _stacked(a: Tensor, b: Tensor, operands: DType | None) -> TensorHandle:
    """a[..., m, k] @ b[..., k, n]"""
    left = handle_of(a)
    *before, m, k = left.shape
    *others, _, n = b.shape
    if all(map(is_one, others)):  # one matrix for all rows
        flat = reshaped(left, prod(before) * m, k)
        rows = rows_times(flat, reshaped(b, b.shape[-2], n), operands=operands)
        ones = [1] * (len(others) - len(before))
        return reshaped(rows, *ones, *before, m, n)
    right = handle_of(b)
    rank = max(len(before), len(others))
    pairs = list(zip(_filled(before, rank), _filled(others, rank), strict=True))
    batch = [second if is_one(first) else first for first, second in pairs]
    axes = _joined(pairs)
    if len(axes) > _MOST_BATCH_AXES:
        left, right = _expanded(left, batch), _expanded(right, batch)
        axes = [(prod(batch), prod(batch))]
    own, other = tuple(first for first, _ in axes), tuple(second for _, second in axes)
    dtype = left.dtype
    kernel = kernel_of(
        batch_matmul, (own, other), m, n, k, dtype=dtype, total=wide(dtype), result=dtype
    )
    product = kernel(reshaped(left, *own, m, k), reshaped(right, *other, k, n))
    return reshaped(product, *batch, m, n)


def _filled(extents: list[Extent], rank: int) -> list[Extent]:
    return [1] * (rank - len(extents)) + extents


def _joined(pairs: list[tuple[Extent, Extent]]) -> list[tuple[Extent, Extent]]:
    """The batch axes of two operands; neighbours are fused where both have them, or where only one has."""
    kinds: list[tuple[bool, bool]] = []
    joined: list[tuple[Extent, Extent]] = []
    for first, second in pairs:
        kind = is_one(first), is_one(second)
        if all(kind):
            continue
        if kinds and kinds[-1] == kind:
            joined[-1] = joined[-1][0] * first, joined[-1][1] * second
        else:
            kinds.append(kind)
            joined.append((first, second))
    return joined


def _expanded(x: TensorHandle, batch: list[Extent]) -> TensorHandle:
    """x with all batch axes at their full extents."""
    shape = (*batch, *x.shape[-2:])
    element = repeated(x)
    return computed(shape, lambda *at: element(at))


@operator("Gemm", ranks=(2, 2))
def gemm(call: Call) -> Tensor:
    call.require_kernel()
    left, b, c = call.tensor(0), call.given(1), call.optional(2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    turned: Any = {
        "transpose_a": bool(call.attribute("transA", 0)),
        "transpose_b": bool(call.attribute("transB", 0)),
        "operands": _operands(call),
    }
    n = b.shape[0 if turned["transpose_b"] else 1]
    dtype = left.dtype
    if dtype.is_integer:
        if alpha != int(alpha) or beta != int(beta):
            raise call.node.error(f"integers aren't multiplied by {alpha} and {beta}")
        alpha, beta = int(alpha), int(beta)
    is_row = c is not None and c.shape in ((n,), (1, n))
    if alpha == beta == 1 and (c is None or is_row):
        return rows_times(left, b, None if c is None else reshaped(c, n), **turned)
    product = rows_times(left, b, **turned)
    if c is None:
        return computed(product.shape, lambda *at: product[at] * alpha)
    offset, total = repeated(handle_of(c)), wide(dtype)
    return computed(
        product.shape,
        lambda *at: (product[at].to(total) * alpha + offset(at).to(total) * beta).to(dtype),
    )


@operator("MatMulInteger")
def integer_product(call: Call) -> Tensor:
    call.require_kernel()
    return integer_sums(call.given(0), call.given(1), call.optional(2), call.optional(3))


def integer_sums(
    a: Tensor, b: Tensor, zero_a: Tensor | None, zero_b: Tensor | None
) -> TensorHandle:
    """Products of bytes less their zero points, as i32."""
    sums = sums_of_bytes(a, b, zero_a, zero_b)
    if sums is not None:
        return sums
    between = exact_type(a.shape[-1])
    of_a = None if zero_a is None else repeated(_of_rows(handle_of(zero_a)))
    of_b = None if zero_b is None else repeated(handle_of(zero_b))
    left, right = shifted(handle_of(a), of_a, between), shifted(handle_of(b), of_b, between)
    return converted(multiplied(left, right), i32)


@operator("QLinearMatMul")
def quantized_product(call: Call) -> Tensor:
    _, of_a, _, _, of_b, _, of_y, zero_y = call.tensors(8)
    sums = integer_sums(call.given(0), call.given(3), call.given(2), call.given(5))
    return requantized(
        sums, (repeated(_of_rows(of_a)), repeated(of_b), repeated(of_y)),
        repeated(zero_y), zero_y.dtype,
    )  # fmt: skip


def _of_rows(x: TensorHandle) -> TensorHandle:
    """A left operand's scale or zero point; several of them are one for each row."""
    if len(x.shape) != 1 or is_one(x.shape[0]):
        return x
    return x.reshape(*x.shape, 1)


def shifted(x: TensorHandle, zero: Function | None, dtype: DType) -> TensorHandle:
    """x less its zero point (a function of an element's indices), converted to another type."""
    if zero is None:
        return converted(x, dtype)
    return computed(x.shape, lambda *at: x[at].to(dtype) - zero(at).to(dtype))


@operator("Det", since=11)
def determinant(call: Call) -> Made:
    (x,) = call.tensors(1)
    *batch, rows, columns = x.shape if len(x.shape) >= 2 else (0, 1)
    if not are_equal(rows, columns):
        raise call.node.error(f"its input {[*x.shape]} is no square matrix")
    total, count = wide(x.dtype), prod(batch)
    left = computed(x.shape, lambda *at: x[at].to(total)).reshape(count, rows, rows)
    made = kernel_of(determinants, count, rows, dtype=x.dtype)(left)
    return reshaped(made, *batch)


# --- Einsum -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor whose axes have labels, no two the same."""

    x: TensorHandle
    labels: tuple[str, ...]

    def ordered(self, labels: Sequence[str]) -> TensorHandle:
        """The tensor with its axes in this order."""
        order = [self.labels.index(label) for label in labels]
        return self.x if order == [*range(len(order))] else transposed(self.x, order, "ordered")

    def extents(self, labels: Sequence[str]) -> Shape:
        return tuple([self.x.shape[self.labels.index(label)] for label in labels])


@operator("Einsum", since=12)
def einsum(call: Call) -> Made:
    call.require_kernel()
    inputs = [call.tensor(position) for position in range(len(call.inputs))]
    terms, result = _parsed(call, [len(x.shape) for x in inputs])
    extents = _extents(call, inputs, terms)
    if unknown := {*result} - extents.keys():
        raise call.node.error(f"its result has {sorted(unknown)}, and no operand has")
    operands = [_distinct(x, labels, extents) for x, labels in zip(inputs, terms, strict=True)]
    result_so_far, *others = operands
    while others:
        needed = {*result}.union(*(other.labels for other in others[1:]))
        result_so_far = _product(
            _summed(result_so_far, {*others[0].labels, *needed}),
            _summed(others[0], {*result_so_far.labels, *needed}),
            needed,
        )
        del others[0]
    return _summed(result_so_far, {*result}).ordered(result)


def _parsed(call: Call, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the result; dots become the labels ".0", ".1", ... from the last axis on."""
    equation = call.attribute("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    written = left.split(",")
    if len(written) != len(ranks):
        raise call.node.error(f"its equation '{equation}' has {len(written)} operands")
    terms = []
    for term, rank in zip(written, ranks, strict=True):
        labels = _labels(term, rank - len(term.replace("...", "")))
        if len(labels) != rank:
            raise call.node.error(f"'{term}' doesn't name the axes of {rank} dimensions")
        terms.append(labels)
    every = [label for labels in terms for label in labels]
    dots = sorted({label for label in every if label[0] == "."}, reverse=True)
    if arrow:
        return terms, _labels(right, len(dots))
    return terms, dots + sorted({label for label in every if every.count(label) == 1} - {*dots})


def _labels(term: str, count: int) -> list[str]:
    before, dots, behind = term.partition("...")
    hidden = [f".{number}" for number in reversed(range(count))] if dots else []
    return [*before, *hidden, *behind]


def _extents(
    call: Call, inputs: Sequence[TensorHandle], terms: Sequence[Sequence[str]]
) -> dict[str, Extent]:
    """The extent of each label; an extent of 1 broadcasts."""
    extents: dict[str, Extent] = {}
    for x, labels in zip(inputs, terms, strict=True):
        for label, extent in zip(labels, x.shape, strict=True):
            known = extents.get(label, 1)
            if not (are_equal(known, 1) or are_equal(extent, 1) or are_equal(known, extent)):
                raise call.node.error(f"'{label}' stands for {known} and for {extent} elements")
            extents[label] = extent if are_equal(known, 1) else known
    return extents


def _distinct(x: TensorHandle, labels: Sequence[str], extents: dict[str, Extent]) -> _Operand:
    """The operand with each label once, at its full extent: a label that occurs twice is a diagonal."""
    distinct = tuple(dict.fromkeys(labels))
    shape = tuple([extents[label] for label in distinct])
    same = all(are_equal(one, other) for one, other in zip(shape, x.shape, strict=False))
    if len(distinct) == len(labels) and same:
        return _Operand(x, distinct)
    place, once = tuple([distinct.index(label) for label in labels]), ones(x.shape)
    made = computed(
        shape, lambda *at: element(x, once, tuple(at[axis] for axis in place)), name="diagonal"
    )
    return _Operand(made, distinct)


def _summed(operand: _Operand, kept: set[str]) -> _Operand:
    """The sum over all labels but these."""
    axes = tuple([axis for axis, label in enumerate(operand.labels) if label not in kept])
    if not axes:
        return operand
    labels = tuple([label for label in operand.labels if label in kept])
    return _Operand(folded("sum", operand.x, axes, False), labels)


def _product(a: _Operand, b: _Operand, needed: set[str]) -> _Operand:
    """The product, summed over the labels that both have and nothing else needs."""
    both = [label for label in a.labels if label in b.labels]
    batch = [label for label in both if label in needed]
    inner = [label for label in both if label not in needed]
    rows = [label for label in a.labels if label not in both]
    columns = [label for label in b.labels if label not in both]
    outer, m, k = a.extents(batch), prod(a.extents(rows)), prod(a.extents(inner))
    n = prod(b.extents(columns))
    left = a.ordered([*batch, *rows, *inner]).reshape(*outer, m, k)
    right = b.ordered([*batch, *inner, *columns]).reshape(*outer, k, n)
    shape = (*outer, *a.extents(rows), *b.extents(columns))
    product = multiplied(left, right).reshape(*shape)
    return _Operand(product, (*batch, *rows, *columns))
