"""The vocabulary of a kernel in CUDA C++: unique names, types and constants, and functions of the namespace `tc`.

Functions for operations that C++ lacks are in two files, `numbers.cuh` (plain C++) and `instructions.cuh` (PTX, and
compiler built-ins); a kernel gets only those that it uses. An entry begins with its name and the names of the entries
that it needs:

    //: minimum.f64 bits64
    __device__ __forceinline__ f64 minimum(f64 a, f64 b) { ... }

An entry `name.variant` is one of several functions with the same name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from taskc.dataclass import dataclass
from taskc.ir.arithmetic import MATH_FUNCTIONS, as_storage
from taskc.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, tf32

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
    consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long main
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq
    threadIdx blockIdx blockDim gridDim warpSize printf assert memcpy shared_memory status arrivals tc WARP
    fma min max abs linux unix i386
""".split()
# Functions that are entries of the prelude, and those that C has, by C's name for f64; f32 has an f appended.
PRELUDE_FUNCTIONS = ("sigmoid", "gelu", "fast_exp2")
C_FUNCTIONS = {
    **{name: name for name in MATH_FUNCTIONS.difference(PRELUDE_FUNCTIONS)},
    **{name: name for name in ("floor", "ceil", "trunc", "sqrt", "fmod")},
    "round": "rint",
    "abs": "fabs",
}
# Functions of C that the compiler has built in, which a kernel would overload.
_BUILT_IN = frozenset(
    """
    main abort exit free malloc memset labs j0 j1 y0 y1 rint round lrint llrint lround llround nearbyint
    ilogb logb scalbn scalbln fdim tgamma remquo nexttoward norm norm3d norm4d rhypot rcbrt normcdf sincos
    """.split()
) | frozenset([name for name in dir(math) if callable(getattr(math, name))])

_OF_C = [f"{name}{suffix}" for name in C_FUNCTIONS.values() for suffix in ("", "f")]
_RESERVED = frozenset([*_KEYWORDS, *_OF_C, *DTYPES])


class UniqueNames:
    def __init__(self) -> None:
        self.of: dict[object, str] = {}
        self.taken = set(_RESERVED)
        self.counts: dict[str, int] = {}

    def __getitem__(self, named: object) -> str:
        """The name of a Variable, Tensor, Table or Snippet."""
        name = self.of.get(named)
        if name is None:
            name = self.of[named] = self.fresh(str(getattr(named, "name", named)))
        return name

    def fresh(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        # Names with __ are reserved for the compiler.
        base = re.sub(r"__+", "_", base).strip("_") or "x"
        base = f"x{base}" if base[0].isdigit() else base
        name, count = base, self.counts.get(base, 0)
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.counts[base] = count
        self.taken.add(name)
        return name


def function_name(wanted: str) -> str:
    """A kernel's name, before it is made unique."""
    return (
        f"{wanted}_kernel"
        if wanted in _BUILT_IN or wanted.removesuffix("f") in _BUILT_IN
        else wanted
    )


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


@dataclass(frozen=True, slots=True)
class PreludeEntry:
    """needs: the names of entries that have to come before it."""

    name: str
    needs: tuple[str, ...]
    text: str


@cache
def library() -> dict[str, PreludeEntry]:
    entries: dict[str, PreludeEntry] = {}
    folder = Path(__file__).parent
    for file in ("numbers.cuh", "instructions.cuh"):
        for part in (folder / file).read_text(encoding="utf-8").split("//: ")[1:]:
            head, _, text = part.partition("\n")
            name, *needs = head.split()
            entries[name] = PreludeEntry(name, tuple(needs), text.strip())
    return entries


class Prelude:
    """The entries that a kernel uses, and functions generated for it, in dependency order."""

    def __init__(self) -> None:
        self.used: dict[str, PreludeEntry] = {}

    def use(self, name: str) -> None:
        if name not in self.used:
            self.add(library()[name])

    def add(self, entry: PreludeEntry) -> None:
        if entry.name in self.used:
            return
        for needed in entry.needs:
            self.use(needed)
        self.used[entry.name] = entry


def prelude_text(entries: Iterable[PreludeEntry], macros: Iterable[str] = ()) -> str:
    entries = list(entries)
    if not entries:
        return TYPEDEFS
    names = {entry.name for entry in entries}
    types = [f"using tc::{dtype};" for dtype in STRUCTURES if dtype.name in names]
    texts = "\n\n".join([entry.text for entry in entries])
    lines = [TYPEDEFS, *macros, "namespace tc {\n", texts, "\n}  // namespace tc"]
    return "\n".join([*lines, *types, "\n"])
