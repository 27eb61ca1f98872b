"""Operators of com.microsoft whose weights have few bits: MatMulNBits, MatMulBnb4 and GatherBlockQuantized.

Constant weights of 2, 4 and 8 bits stay packed, in groups with a scale each, for the kernels that make floats of them
in registers, or multiply them as they are by bytes. What these kernels don't have becomes floats once, when the model
is compiled.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, f32, i32, i64, u4, u8
from taskc.dataclass import dataclass
from taskc.ir.types import from_numpy
from taskc.kernels.quantized import quantized_matmul
from taskc.kernels.quantized.words import (
    columns_of_experts,
    multiplies_words,
    rounded_rows,
    words_matmul,
)
from taskc.operators.call import Call, Made, operator
from taskc.operators.files import MICROSOFT
from taskc.operators.graph import Array
from taskc.operators.microsoft import require_default
from taskc.operators.operands import kernel_of, made_for_all, size, widened
from taskc.operators.products import rows_times
from taskc.operators.tensors import Tensor, computed, handle_of, now, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

_GROUP = 128  # most weights of an expert's row that are added up before they are scaled
_FEW = 32  # rows of floats, each tile of which makes floats of the weights


def codes_of(packed: Array, bits: int, count: int) -> Array:
    """The first `count` numbers of each row of bytes; a byte has its first number in its lowest bits."""
    if bits == 8:
        return packed[..., :count]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    codes: Array = parts.reshape(*packed.shape[:-1], -1)[..., :count]
    return codes


@tc.function
def number_at(x: TensorHandle, place: Computed, bits: int) -> Computed:
    """The number at a place of a tensor whose bytes have several along the last axis, the first in the lowest bits."""
    at = (*place[:-1], place[-1] * bits // 8)
    return x[at].to(i32) >> (place[-1] * bits % 8).to(i32) & (1 << bits) - 1


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights w[n, k] = (code - zero) * scale, with a scale for each `block` of neighbours along k.

    packed  [n, blocks, bytes]
    scales  [n, blocks]
    zeros   packed like the weights, or floats [n, blocks]; without them each is half of the range
    groups  the block of each k, where it isn't k // block
    """

    n: int
    k: int
    bits: int
    block: int
    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    groups: Tensor | None

    @property
    def blocks(self) -> int:
        return ceil(self.k / self.block)

    @property
    def are_constant(self) -> bool:
        return not any(
            isinstance(x, TensorHandle) for x in (self.packed, self.scales, self.zeros, self.groups)
        )

    @property
    def fit_kernel(self) -> bool:
        """Whether the kernel takes them as they are: in groups, with zero points of their own type."""
        has_floats = self.zeros is not None and self.zeros.dtype != np.uint8
        return (
            self.are_constant
            and self.groups is None
            and not has_floats
            and tc.machine().is_processor
        )

    @property
    def codes(self) -> Array:
        """[k, n]"""
        assert isinstance(self.packed, np.ndarray)
        codes: Array = codes_of(self.packed.reshape(self.n, -1), self.bits, self.k).T
        return codes

    @property
    def zero_codes(self) -> Array | None:
        """[blocks, n]"""
        if self.zeros is None:
            return None
        assert isinstance(self.zeros, np.ndarray)
        rows = self.zeros.reshape(self.n, -1)
        zeros = codes_of(rows, self.bits, self.blocks) if rows.dtype == np.uint8 else rows
        turned: Array = zeros.T
        return turned

    def floats(self, dtype: DType) -> Array:
        """[k, n], of constant weights."""
        assert isinstance(self.scales, np.ndarray)
        places = np.arange(self.k) // self.block if self.groups is None else np.asarray(self.groups)
        zeros, scales = self.zero_codes, self.scales.reshape(self.n, self.blocks).T
        zero = np.float32(1 << self.bits - 1) if zeros is None else zeros.astype(np.float32)[places]
        made: Array = (self.codes - zero) * scales.astype(np.float32)[places]
        return made.astype(dtype.numpy)

    def computed(self, dtype: DType) -> TensorHandle:
        """[k, n], of weights that are known when the model runs."""
        bits, block, n, blocks = self.bits, self.block, self.n, self.blocks
        packed = reshaped(handle_of(self.packed), n, blocks * block * bits // 8)
        scales = reshaped(handle_of(self.scales), n, blocks)
        zeros = None if self.zeros is None else handle_of(self.zeros)
        rows = None if zeros is None else reshaped(zeros, n, size(zeros.shape) // n)
        groups = None if self.groups is None else handle_of(self.groups)
        middle = 1 << bits - 1

        @tc.function
        def zero(j: Element, g: Element) -> Computed:
            if rows is None:
                return f32(middle)
            elif rows.dtype is u8:
                return number_at(rows, (j, g), bits).to(f32)
            else:
                return rows[j, g].to(f32)

        @tc.function
        def weight(q: Element, j: Element) -> Computed:
            g = q // block if groups is None else min(max(groups[q].to(i64), 0), blocks - 1)
            moved = number_at(packed, (j, q), bits).to(f32) - zero(j, g)
            return (moved * scales[j, g].to(f32)).to(dtype)

        return computed((self.k, n), weight)


@operator("MatMulNBits", domain=MICROSOFT)
def product_of_few_bits(call: Call) -> Tensor:
    """x @ w.T + bias. `accuracy_level` 4 allows rounding of x to bytes, which is done where their products are fast."""
    require_default(call, weight_prepacked=0)
    (x,) = call.tensors(1)
    n, k, bits, block = (call.count(name) for name in ("N", "K", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise call.node.error(
            f"its attribute 'bits' is {bits}, and taskc has weights of 2, 4 and 8 bits"
        )
    zeros, groups, bias = (call.optional(place) for place in (3, 4, 5))
    weights = _Weights(n, k, bits, block, call.given(1), call.given(2), zeros, groups)
    shape = (*x.shape[:-1], n)
    if any(extent == 0 for extent in weights.packed.shape if isinstance(extent, int)):
        return _without_weights(x, shape, bias)
    _check_sizes(call, weights)
    rows = reshaped(x, size(x.shape[:-1]), k)
    if weights.fit_kernel:
        level = call.attribute("accuracy_level")
        is_rounded = level == 4 and multiplies_words(bits, tc.machine())
        if is_rounded or not isinstance(rows.shape[0], int) or rows.shape[0] <= _FEW:
            return reshaped(_by_words(rows, weights, bias, is_rounded), *shape)
        return reshaped(_by_kernel(rows, weights, bias), *shape)
    w = weights.floats(x.dtype) if weights.are_constant else weights.computed(x.dtype)
    return reshaped(rows_times(rows, w, bias), *shape)


def _without_weights(x: TensorHandle, shape: tuple[Any, ...], bias: Tensor | None) -> TensorHandle:
    """The result where the weights are left out: the bias, or zeros."""
    if bias is None:
        return computed(shape, lambda *at: x.dtype(0))
    offset = handle_of(bias)
    return computed(shape, lambda *at: offset[at[-1]])


def _check_sizes(call: Call, weights: _Weights) -> None:
    """Refuse weights and scales that don't have the sizes which the attributes name."""
    n, blocks = weights.n, weights.blocks
    width = call.shape(0)[-1]
    if isinstance(width, int) and width != weights.k:
        raise call.node.error(
            f"its rows have {width} elements, and its attribute 'K' is {weights.k}"
        )
    needed = {
        "weights": (weights.packed, n * blocks * weights.block * weights.bits // 8),
        "scales": (weights.scales, n * blocks),
    }
    for name, (x, count) in needed.items():
        if size(x.shape) != count:
            raise call.node.error(
                f"its {name} {list(x.shape)} aren't {n} rows of {blocks} blocks of {weights.block}"
            )


def _by_kernel(rows: TensorHandle, weights: _Weights, bias: Tensor | None) -> TensorHandle:
    """The product by packed weights; those of 2 bits take 4."""
    right: DType = u8 if weights.bits == 8 else u4
    zeros, scales = weights.zero_codes, np.asarray(weights.scales)
    kernel: Any = kernel_of(
        quantized_matmul, rows.shape[0], weights.n, weights.k, dtype=rows.dtype, right=right,
        group=weights.block, scales=from_numpy(scales.dtype), zeros=zeros is not None,
        zero=0 if zeros is not None else 1 << weights.bits - 1, bias=bias is not None,
    )  # fmt: skip
    codes = np.ascontiguousarray(weights.codes.astype(right.numpy))
    operands = [
        now(lambda: kernel.pack(codes, "b")),
        np.ascontiguousarray(scales.reshape(weights.n, weights.blocks).T),
    ]
    if zeros is not None:
        operands.append(np.ascontiguousarray(zeros.astype(right.numpy)))
    if bias is not None:
        operands.append(widened(bias, rows.dtype))
    made: TensorHandle = kernel(rows, *operands)
    return made


def _by_words(
    rows: TensorHandle, weights: _Weights, bias: Tensor | None, is_rounded: bool
) -> TensorHandle:
    """The product by words of weights; rows are rounded to bytes once for all nodes that read them."""
    m, n, k, bits, group = rows.shape[0], weights.n, weights.k, weights.bits, weights.block
    zeros, scales = weights.zero_codes, np.asarray(weights.scales)
    kernel: Any = kernel_of(
        words_matmul, m, n, k, dtype=None if is_rounded else rows.dtype, bits=bits, group=group,
        scales=from_numpy(scales.dtype), zeros=zeros is not None, result=rows.dtype,
        bias=bias is not None,
    )  # fmt: skip
    codes = np.asarray(weights.packed).reshape(n, -1)
    operands = [
        now(lambda: kernel.pack(codes, "b")),
        now(lambda: kernel.pack(scales.reshape(n, weights.blocks).T, "scales")),
    ]
    if zeros is not None:
        operands.append(now(lambda: kernel.pack(zeros, "points")))
    if bias is not None:
        operands.append(widened(bias, rows.dtype))
    left: Any = (rows,)
    if is_rounded:
        rounded = kernel_of(rounded_rows, m, k, dtype=rows.dtype, group=group)
        left = made_for_all(rows, rounded, lambda: rounded(rows))
    made: TensorHandle = kernel(*left, *operands)
    return made


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Constant weights of experts, in groups: w[e, n, k] = (code - zero) * scale.

    packed  [experts, n, bytes]
    scales  [experts, n, blocks]
    zeros   codes like the scales; without them each is half of the range
    """

    bits: int
    packed: Array
    scales: Array
    zeros: Array | None

    def products(self, left: TensorHandle, places: TensorHandle) -> TensorHandle:
        """left[1 or slots, m, k] by the weights of the expert of each slot: [slots, m, n]."""
        (count, n, _), (own, m, k), (slots,) = self.packed.shape, left.shape, places.shape
        blocks = self.scales.shape[2]
        kernel: Any = kernel_of(
            words_matmul, m, n, k, dtype=left.dtype, bits=self.bits, group=k // blocks,
            scales=from_numpy(self.scales.dtype), zeros=self.zeros is not None, result=left.dtype,
            experts=(count, own, slots),
        )  # fmt: skip
        behind = columns_of_experts(n, count) // count - n

        def rows(x: Array) -> Array:
            return np.pad(x, ((0, 0), (0, behind), (0, 0))).reshape(-1, x.shape[2])

        operands = [
            now(lambda: kernel.pack(rows(self.packed), "b")),
            now(lambda: kernel.pack(rows(self.scales).T, "scales")),
        ]
        if self.zeros is not None:
            zeros = rows(self.zeros).T
            operands.append(now(lambda: kernel.pack(zeros, "points")))
        made: TensorHandle = kernel(left, *operands, places)
        return made


def expert_weights(
    bits: int, block: int, packed: Tensor, scales: Tensor, zeros: Tensor | None
) -> ExpertWeights | None:
    """Weights with a scale for each block of a row, or for each row (0); None if no kernel takes them as they are."""
    if not all(isinstance(x, np.ndarray) for x in (packed, scales, zeros) if x is not None):
        return None
    packed, scales = np.asarray(packed), np.asarray(scales)
    rows, k = packed.shape[1], packed.shape[2] * 8 // bits
    group = block or gcd(k, _GROUP)
    if k % group or group * bits % 32 or not tc.machine().is_processor:
        return None
    codes = None
    if zeros is not None and block:
        codes = codes_of(np.asarray(zeros), bits, k // block)
    elif zeros is not None:
        codes = codes_of(np.asarray(zeros), bits, rows)[..., None]
    if not block:
        scales = np.repeat(scales.reshape(*scales.shape[:2], 1), k // group, 2)
        codes = None if codes is None else np.repeat(codes, k // group, 2)
    return ExpertWeights(bits, packed, np.ascontiguousarray(scales), codes)


# The floats of 4 bits that bitsandbytes has, by their code.
_FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FLOATS = np.array([[*_FP4, *[-x for x in _FP4]], _NF4], np.float32)


@operator("MatMulBnb4", domain=MICROSOFT)
def product_of_float_codes(call: Call) -> Tensor:
    """Products with weights whose codes name floats, in blocks of the flat matrix with one scale each."""
    (x,) = call.tensors(1)
    n, k, block = (call.count(name) for name in ("N", "K", "block_size"))
    kind = call.attribute("quant_type")
    if kind not in (0, 1):
        raise call.node.error(f"its attribute 'quant_type' is {kind}, and taskc has 0 and 1")
    packed, scales = call.known(1).reshape(-1), call.known(2).reshape(-1)
    if packed.size != (n * k + 1) // 2 or scales.size != ceil(n * k / block):
        raise call.node.error(
            f"its weights have {packed.size} bytes and {scales.size} scales, for {n} x {k} in blocks of {block}"
        )
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[: n * k]
    spread = np.repeat(scales.astype(np.float32), block)[: n * k]
    w = (_FLOATS[kind][codes] * spread).astype(x.dtype.numpy).reshape(n, k)
    right: Array = w.T if call.attribute("transB", 1) else w
    rows = reshaped(x, size(x.shape[:-1]), right.shape[0])
    return reshaped(rows_times(rows, right), *x.shape[:-1], right.shape[1])


@operator("GatherBlockQuantized", domain=MICROSOFT)
def gathered_blocks(call: Call) -> Made:
    """Slices of a quantized tensor, as floats; an index out of bounds makes zeros."""
    call.require_kernel()
    data, places, scales = call.given(0), call.tensor(1), call.tensor(2)
    is_bytes = data.dtype in (np.uint8, u8)
    bits = call.attribute("bits", 4) if is_bytes else 8
    if bits not in (2, 4, 8):
        raise call.node.error(f"its attribute 'bits' is {bits}, and taskc has 2, 4 and 8 bits")
    each, middle = 8 // bits, 1 << bits - 1 if is_bytes else 0
    x, zeros = _numbers(data), _numbers(call.optional(3))
    rank, block = len(x.shape), call.count("block_size", 128)
    axis = call.axis_of(call.attribute("gather_axis", 0), rank)
    blocked = call.axis_of(call.attribute("quantize_axis", 1), rank)
    if is_bytes and each > 1 and (axis != 0 or blocked == 0):
        raise call.node.error(
            "packed numbers are gathered along axis 0, and have blocks along another"
        )
    extent, behind = x.shape[axis], axis + len(places.shape)
    whole = (*x.shape[:-1], x.shape[-1] * each)
    dtype = scales.dtype

    @tc.function
    def number(of: TensorHandle, at: Computed) -> Computed:
        return number_at(of, at, bits) if each > 1 else of[at].to(i32)

    @tc.function
    def zero(at: Computed) -> Computed:
        return i32(middle) if zeros is None else number(zeros, at)

    @tc.function
    def value(*at: Element) -> Computed:
        named = places[at[axis:behind]].to(i64)
        index = named + extent if named < 0 else named
        inside = index >= 0 and index < extent
        place = (*at[:axis], min(max(index, 0), extent - 1), *at[behind:])
        group = tuple(place[d] // block if d == blocked else place[d] for d in range(rank))
        moved = (number(x, place) - zero(group)).to(f32)
        return (moved * scales[group].to(f32)).to(dtype) if inside else dtype(0)

    return computed((*whole[:axis], *places.shape, *whole[axis + 1 :]), value)


def _numbers(x: Tensor | None) -> Any:
    """A tensor to read; a constant of a sub-byte type takes a byte for each number."""
    if x is None or isinstance(x, TensorHandle):
        return x
    return handle_of(x if x.dtype == np.uint8 else x.astype(np.int8))
