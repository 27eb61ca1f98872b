"""Reads of a table of 256 bytes by AVX-512's VBMI: the table is four registers, and a vector of places is permuted.

    y = table[x]    ->    low  = vpermi2b(table[0:64], x, table[64:128])        by the seven low bits of x
                          high = vpermi2b(table[128:192], x, table[192:256])
                          y = high where x's highest bit is set, else low

A gather of bytes is 16 loads and as many insertions.
"""

from __future__ import annotations

from taskc.backend.cpu.instructions import Builder, vector_of
from taskc.ir.nodes import GLOBAL, Tensor

_BYTES = 64  # of a register
_REGISTER = vector_of("i8", _BYTES)


def is_byte_table(tensor: Tensor) -> bool:
    """Whether all places that a byte can name are in the tensor, and no others."""
    is_read_only = tensor.scope == GLOBAL and tensor.role == "in"
    has_bytes = tensor.dtype.bits == 8 and tensor.dtype.is_integer
    return is_read_only and has_bytes and tensor.shape == (4 * _BYTES,) and tensor.layout is None


def looked_up(builder: Builder, base: str, places: str, lanes: int) -> str:
    """The table's bytes at a vector of at most 64 places, as text."""
    kind = vector_of("i8", lanes)
    spread = [str(lane % lanes) for lane in range(_BYTES)]
    wide = _shuffled(builder, f"{kind} {places}", spread)
    tables = [
        builder.pure(
            f"load {_REGISTER}, ptr {builder.pure(f'getelementptr i8, ptr {base}, i64 {first}')}, align 1"
        )
        for first in range(0, 4 * _BYTES, _BYTES)
    ]
    function = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (
        builder.call(
            _REGISTER, function, *(f"{_REGISTER} {part}" for part in (first, wide, second)),
            types=(_REGISTER, _REGISTER, _REGISTER),
        )
        for first, second in (tables[:2], tables[2:])
    )  # fmt: skip
    is_high = builder.pure(f"icmp slt {_REGISTER} {wide}, zeroinitializer")
    picked = builder.pure(
        f"select <{_BYTES} x i1> {is_high}, {_REGISTER} {high}, {_REGISTER} {low}"
    )
    return _shuffled(builder, f"{_REGISTER} {picked}", [str(lane) for lane in range(lanes)])


def _shuffled(builder: Builder, typed: str, picks: list[str]) -> str:
    kind = typed.rpartition(" ")[0]
    listed = ", ".join(f"i32 {pick}" for pick in picks)
    return builder.pure(f"shufflevector {typed}, {kind} poison, <{len(picks)} x i32> <{listed}>")
