"""Elements of sub-byte types are unpacked from bytes at each load.

b: i4[16, n]                                     b: i4[16, n].bytes()
y[i] = cast(b[i * n + j], i8)             ->     y[i] = cast(b[a // 2] << cast(4 - a % 2 * 4, u8), i8) >> 4
                                                 (with a for i * n + j)

Element a has bits [a * bits, (a + 1) * bits) of the stream (taskc/ir/bits.py). For 6 bits, which may span two bytes,
the bytes of the first and of the last bit are read: never one past the end. The bits of a float become the
sign, the lowest bits of the exponent, and the highest of the mantissa of an f16; one exact multiplication
corrects the difference of the exponents' biases, and subnormals come out right.

The pass comes after flatten, which gives each access its one offset; no later pass knows of sub-byte types.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.bits import bytes_of
from taskc.ir.nodes import Binary, Bitcast, Cast, Constant, Expression, Kernel, Tensor
from taskc.ir.rewrite import map_children
from taskc.ir.types import DType, f16, i8, u8, u16


def unpack(kernel: Kernel) -> Kernel:
    """Turn reads of sub-byte parameters into reads of bytes, as the head of this file shows."""
    bytes_in: dict[Tensor | ir.Variable, Tensor] = {
        item: bytes_of(item)
        for item in kernel.parameters
        if isinstance(item, Tensor) and item.dtype.is_sub_byte
    }
    if not bytes_in:
        return kernel
    known: dict[int, tuple[Any, Any]] = {}

    def visit(node: Any) -> Any:
        found = known.get(id(node))
        if found is None:
            found = known[id(node)] = node, visited(node)
        return found[1]

    def visited(node: Any) -> Any:
        read = node.operand if type(node) is Cast else None
        if type(read) is ir.Read and read.tensor in bytes_in:
            found = _unpacked(bytes_in[read.tensor], visit(read.indices[0]), read)
            return found if found.dtype is node.dtype else replace(node, operand=found)
        return map_children(node, visit)

    parameters = tuple([bytes_in.get(item, item) for item in kernel.parameters])
    return replace(kernel, parameters=parameters, body=visit(kernel.body))


def _unpacked(memory: Tensor, offset: Expression, read: ir.Read) -> Expression:
    """The element at an offset, in the type of the read."""
    assert memory.held is not None
    dtype = memory.held.dtype
    if dtype.bits == 4:
        half = _times(_modulo(offset, 2), 4)
        byte = ir.Read(memory, (_quotient(offset, 2),), loc=read.loc)
        if dtype.kind == "int":
            high = Binary("<<", byte, Cast(Binary("-", _like(4, half), half), u8))
            return Binary(">>", Cast(high, i8), Constant(4, i8))
        code: Expression = Binary("&", Binary(">>", byte, Cast(half, u8)), Constant(15, u8))
        return code if dtype.kind == "uint" else _float(code, dtype)
    # Whole numbers of elements that are whole numbers of bytes, so that offsets stay small.
    unit = gcd(dtype.bits, 8)
    whole = _times(_quotient(offset, 8 // unit), dtype.bits // unit)
    start = _times(_modulo(offset, 8 // unit), dtype.bits)
    first, last = [
        Cast(ir.Read(memory, (Binary("+", whole, _quotient(place, 8)),), loc=read.loc), u16)
        for place in (start, Binary("+", start, _like(dtype.bits - 1, start)))
    ]
    both = Binary("|", first, Binary("<<", last, Constant(8, u16)))
    within = Cast(_modulo(start, 8), u16)
    mask = Constant((1 << dtype.bits) - 1, u16)
    return _float(Binary("&", Binary(">>", both, within), mask), dtype)


def _float(code: Expression, dtype: DType) -> Expression:
    """The f16 of a narrow float's bits."""
    wide = code if code.dtype is u16 else Cast(code, u16)
    magnitude = Binary("&", wide, Constant((1 << dtype.bits - 1) - 1, u16))
    sign = Binary("&", wide, Constant(1 << dtype.bits - 1, u16))
    bits = Binary(
        "|",
        Binary("<<", magnitude, Constant(f16.mantissa_bits - dtype.mantissa_bits, u16)),
        Binary("<<", sign, Constant(16 - dtype.bits, u16)),
    )
    bias_difference = 2 ** (f16.exponent_bits - 1) - 2 ** (dtype.exponent_bits - 1)
    return Binary("*", Bitcast(bits, f16), Constant(2.0**bias_difference, f16))


def _like(number: int, other: Expression) -> Constant:
    return Constant(number, other.dtype)


def _quotient(index: Expression, by: int) -> Expression:
    return Binary("//", index, _like(by, index))


def _modulo(index: Expression, by: int) -> Expression:
    return Binary("%", index, _like(by, index))


def _times(index: Expression, by: int) -> Expression:
    return Binary("*", index, _like(by, index))
