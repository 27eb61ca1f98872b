"""Elements of sub-byte types, of 4 or 6 bits, in bytes: element a has bits [a * bits, (a + 1) * bits) of a stream.

The stream begins with a byte's lowest bit, as ONNX and PyTorch have it. Alone, an element is one of ml_dtypes'
numbers, with a byte of its own.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any, TypeAlias

import numpy as np

from taskc.ir import build
from taskc.ir.nodes import Constant, Expression, Tensor
from taskc.ir.types import DType, u8, u32

Array: TypeAlias = "np.ndarray[Any, Any]"


def bytes_of(tensor: Tensor) -> Tensor:
    """The parameter of bytes that stores a parameter's elements: `i4[k, n].bytes()`."""
    layout = tensor.layout
    count = build.product(tensor.shape)
    if layout is not None:
        pairs = zip(tensor.shape, layout.shape, strict=True)
        wholes = [build.ceiling_divide(build.index(extent), size) for extent, size in pairs]
        count = build.multiply(build.product(wholes), layout.slots)
    size = build.ceiling_divide(build.multiply(count, tensor.dtype.bits), 8)
    shape = (int(size.value) if isinstance(size, Constant) else size,)
    return replace(tensor, dtype=u8, shape=shape, layout=None, given=None, held=tensor)


def words_of(tensor: Tensor) -> Tensor:
    """The parameter of 32-bit words that stores a parameter's elements, for rows of whole words: `i4[k, n].words()`."""
    *outer, last = tensor.shape
    assert isinstance(last, int)
    return replace(tensor, dtype=u32, shape=(*outer, last * tensor.dtype.bits // 32), held=tensor)


def has_whole_rows(tensor: Tensor) -> bool:
    """Whether each row, in the last dimension, takes whole bytes, so that callers may pass elements as bytes."""
    *_, last = tensor.argument_shape or (1,)
    return not isinstance(last, int) or last * tensor.dtype.bits % 8 == 0


def shape_in_bytes(shape: tuple[int | Expression, ...], dtype: DType) -> tuple[Any, ...]:
    """The shape in bytes of rows of elements."""
    *outer, last = shape
    unit = gcd(dtype.bits, 8)
    count = build.multiply(build.floor_divide(last, 8 // unit), dtype.bits // unit)
    return (*outer, count.value if isinstance(count, Constant) else count)


def shape_of_elements(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...] | None:
    """The shape in elements of rows of bytes; None if a row isn't a whole number of elements."""
    if not shape or shape[-1] * 8 % dtype.bits:
        return None
    return (*shape[:-1], shape[-1] * 8 // dtype.bits)


def into_bytes(elements: Array, dtype: DType) -> Array:
    """The elements, row-major, as a stream of bits."""
    codes = np.ascontiguousarray(elements, dtype.numpy).reshape(-1).view(np.uint8)
    if dtype.bits == 4:
        padded = np.concatenate([codes, np.zeros(codes.size % 2, np.uint8)]) & np.uint8(15)
        return np.asarray(padded[::2] | padded[1::2] << np.uint8(4))
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : dtype.bits]
    return np.packbits(bits.reshape(-1), bitorder="little")


def from_bytes(stream: Array, dtype: DType, count: int) -> Array:
    """The first elements of a stream of bits."""
    bits = dtype.bits
    stream_bytes = stream.reshape(-1)[: dtype.bytes_of(count)]
    if bits == 4:
        codes = np.stack(
            [stream_bytes & np.uint8(15), stream_bytes >> np.uint8(4)], axis=1
        ).reshape(-1)[:count]
    else:
        each = np.unpackbits(stream_bytes, bitorder="little")[: count * bits].reshape(count, bits)
        codes = np.packbits(each, axis=1, bitorder="little").reshape(-1)
    if dtype.kind == "int":
        unused = np.uint8(8 - bits)
        signed = (codes << unused).view(np.int8) >> np.int8(8 - bits)
        return np.asarray(signed.astype(dtype.numpy))
    return np.ascontiguousarray(codes).view(dtype.numpy)
