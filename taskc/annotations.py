"""Annotations of kernels' parameters: element types and roles.

Type checkers read `annotations.pyi` in place of this file.
"""

from __future__ import annotations

from taskc.ir.types import (
    bf16,
    boolean,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u4,
    u8,
    u16,
    u32,
    u64,
)
from taskc.lang.names import inout, out, typed

__all__ = [
    "bf16",
    "boolean",
    "f4e2m1",
    "f6e2m3",
    "f6e3m2",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "inout",
    "out",
    "tf32",
    "typed",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
]
