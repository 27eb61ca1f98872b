"""Element types and constants in CUDA C++."""

from __future__ import annotations

import math

import numpy as np

from taskc.ir.arithmetic import as_storage
from taskc.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, tf32

# The types have the language's names.
TYPEDEFS = (
    "typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;\n"
    "typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32;"
    " typedef unsigned long long u64;\n"
    "typedef float f32; typedef float tf32; typedef double f64;\n"
)
# Represented by their bits.
STRUCTURES = tuple(
    dtype
    for dtype in DTYPES.values()
    if dtype.is_float and dtype.bits < 32 and not dtype.is_sub_byte
)
COMPUTED_IN_F32 = (f16, bf16)

_SUFFIXES = {"i64": "ll", "u32": "u", "u64": "ull"}


def type_name(dtype: DType) -> str:
    """The name of a type; structures of the prelude's namespace have a `using`."""
    return dtype.name


def literal(value: bool | int | float, dtype: DType) -> tuple[str, bool]:
    """A constant, and whether it is a primary expression; it may call the `tc::` functions of the entries bits32 and
    bits64.
    """
    if dtype is boolean:
        return ("true" if value else "false"), True
    if dtype.is_integer:
        return _integer(int(value), dtype)
    stored = as_storage(value, dtype)
    if dtype in STRUCTURES:
        bits = int(stored.view(np.dtype(f"u{dtype.nbytes}"))[()])
        return f"{dtype}{{{bits:#0{2 + 2 * dtype.nbytes}x}}}", True
    number = stored[()]
    if not math.isfinite(number):
        if dtype is f64:
            return f"tc::f64_of({int(stored.view(np.uint64)[()]):#x}ull)", True
        return f"tc::f32_of({int(stored.view(np.uint32)[()]):#x}u)", True
    text = str(number)
    if "." not in text and "e" not in text:
        text += ".0"
    if dtype in (f32, tf32):
        text += "f"
    return text, not text.startswith("-")


def _integer(value: int, dtype: DType) -> tuple[str, bool]:
    if dtype.bits < 32:
        return f"({dtype}){value}" if value >= 0 else f"({dtype})({value})", False
    suffix = _SUFFIXES.get(dtype.name, "")
    if dtype.is_signed and value == dtype.minimum:
        return f"({value + 1}{suffix} - 1)", True
    return f"{value}{suffix}", value >= 0
