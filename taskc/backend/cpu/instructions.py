"""LLVM IR as text: values, the builder of a function, and single instructions.

Every value is a `LaneValue`: a scalar, or a vector of one scalar for each lane. A pure instruction that was already
written in this block, or in one that dominates it, is reused, since unrolled code repeats itself. `Instructions` split
and join vectors, call intrinsics by name, and have AVX-512's own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache, lru_cache
from math import isfinite
from typing import TypeAlias

from taskc.dataclass import dataclass
from taskc.ir.types import DType, boolean, f32, i16, i32, i64, u8, u16, u32, u64

SCALAR = 0


@dataclass(frozen=True, slots=True)
class LaneValue:
    """`text` is the operand, `lanes` is SCALAR unless it is a vector, and `number` is the value of a constant."""

    text: str
    dtype: DType
    lanes: int = SCALAR
    number: bool | int | float | None = None

    @property
    def type(self) -> str:
        return type_of(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"


# bf16 and f8 are represented by their bits: LLVM's own conversions to bfloat flush subnormals on some targets.
_TYPES = {
    "bool": "i1",
    "f16": "half",
    "bf16": "i16",
    "f32": "float",
    "f64": "double",
    "tf32": "float",
}


@cache
def type_of(dtype: DType, lanes: int = SCALAR) -> str:
    """The LLVM type of a value."""
    return vector_of(_TYPES.get(dtype.name) or f"i{dtype.bits}", lanes)


def stored_type(dtype: DType, lanes: int = SCALAR) -> str:
    """The LLVM type of a value in memory, where a bool takes a byte."""
    return vector_of("i8", lanes) if dtype is boolean else type_of(dtype, lanes)


def vector_of(element: str, lanes: int) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def constant(number: bool | int | float, dtype: DType, lanes: int = SCALAR) -> LaneValue:
    """A constant, the same on all lanes."""
    return _constant(repr(number), number, dtype, lanes)


@lru_cache(1 << 14)
def _constant(written: str, number: bool | int | float, dtype: DType, lanes: int) -> LaneValue:
    """A constant; `written` distinguishes numbers that are equal: 0.0 from -0.0, and True from 1."""
    text = _constant_text(number, dtype)
    if lanes:
        text = f"splat ({type_of(dtype)} {text})"
    return LaneValue(text, dtype, lanes, number)


# A value, or a number with the type and the lanes of the operand that it meets.
Operand: TypeAlias = "LaneValue | bool | int | float"


def like(value: LaneValue, other: Operand) -> LaneValue:
    """An operand that meets a value."""
    return other if isinstance(other, LaneValue) else constant(other, value.dtype, value.lanes)


def constants(numbers: Sequence[int | float], dtype: DType = i64) -> LaneValue:
    """A constant vector."""
    if len(set(numbers)) == 1:
        return constant(numbers[0], dtype, len(numbers))
    items = ", ".join(f"{type_of(dtype)} {_constant_text(number, dtype)}" for number in numbers)
    return LaneValue(f"<{items}>", dtype, len(numbers))


def _constant_text(number: bool | int | float, dtype: DType) -> str:
    if dtype is boolean:
        return "true" if number else "false"
    if dtype.is_integer:
        return str(int(number))
    if dtype.name in ("f32", "f64", "tf32"):
        # LLVM writes an f32 constant, too, as the bits of a double. Every NaN is written as the quiet one.
        plain = float(number) if isfinite(number) or number == number else float("nan")
        return f"0x{struct.unpack('<Q', struct.pack('<d', plain))[0]:016X}"
    bits = int.from_bytes(dtype.numpy.type(number).tobytes(), "little")
    return f"0xH{bits:04X}" if dtype.name == "f16" else str(bits)


class TooLongError(Exception):
    """The function has more lines than its builder allows."""


WHOLE_LOOPS = '!0 = !{!"llvm.loop.unroll.disable"}'


@dataclass(slots=True)
class Builder:
    """The body of one function. Private memory is allocated in its entry block.

    register  name of the vector register class in inline assembly
    bits      width of the widest vector register
    pieces    instructions that LLVM makes of a gather or a scatter
    permutes_bytes  whether tables of bytes are permuted in registers (byte_tables.py)
    most      limit of lines, None for none
    loops     metadata of loops that LLVM must not unroll, a line each
    """

    register: str = "x"
    bits: int = 128
    pieces: int = 1
    permutes_bytes: bool = False
    most: int | None = None
    lines: list[str] = field(default_factory=list)
    allocations: list[str] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)
    block: str = "entry"
    _names: int = 0
    _known: list[dict[str, str]] = field(default_factory=lambda: [{}])

    def name(self, hint: str = "") -> str:
        self._names += 1
        return f"%{hint}{self._names}"

    def emit(self, line: str) -> None:
        if self.most is not None and len(self.lines) > self.most:
            raise TooLongError
        self.lines.append(f"  {line}")

    def impure(self, text: str) -> str:
        """Write an instruction whose result may differ each time; returns its name."""
        name = self.name()
        self.emit(f"{name} = {text}")
        return name

    def pure(self, text: str) -> str:
        """Write an instruction whose result depends on its operands alone, unless it is known already."""
        name = self.known(text)
        if name is None:
            name = self._known[-1][text] = self.impure(text)
        return name

    def known(self, text: str) -> str | None:
        """The name of an instruction that `pure` wrote here or in an enclosing scope."""
        for known in reversed(self._known):
            name = known.get(text)
            if name is not None:
                return name
        return None

    def unknown(self, kind: str, text: str) -> str:
        """An empty inline assembly that returns the vector unchanged and that no optimization sees through.

        The vector has to fit into one register.
        """
        typed = f"{kind} {text}"
        return f'call {kind} asm "", "={self.register},0"({typed}) nounwind willreturn memory(none)'

    def call(self, result: str, function: str, *operands: str, types: Sequence[str]) -> str:
        """Call a function, which is declared, and return its result; operands include their types."""
        self.declare(result, function, *types)
        return self.impure(f"call {result} @{function}({', '.join(operands)})")

    def call_void(self, function: str, *operands: str, types: Sequence[str]) -> None:
        self.declare("void", function, *types)
        self.emit(f"call void @{function}({', '.join(operands)})")

    def declare(self, result: str, function: str, *types: str) -> None:
        self.declared.setdefault(function, f"declare {result} @{function}({', '.join(types)})")

    def weight(self, first: int) -> int:
        """About how many instructions the lines from `first` on become."""
        return len(self.lines) - first + (self.pieces - 1) * self.scattered(first)

    def scattered(self, first: int) -> int:
        """The number of gathers and scatters in the lines from `first` on."""
        return sum(
            "llvm.masked.gather" in line or "llvm.masked.scatter" in line
            for line in self.lines[first:]
        )

    def allocate(self, text: str, hint: str) -> str:
        name = self.name(f"{hint}.")
        self.allocations.append(f"  {name} = alloca {text}, align 64")
        return name

    def within(self, base: str, offset: int, hint: str) -> str:
        """A pointer into memory that the function receives."""
        name = self.name(f"{hint}.")
        self.allocations.append(f"  {name} = getelementptr i8, ptr {base}, i64 {offset}")
        return name

    # Control flow.

    def label(self, hint: str) -> str:
        self._names += 1
        return f"{hint}{self._names}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def kept_whole(self) -> str:
        """Metadata for the back edge of a loop that LLVM must not unroll."""
        number = len(self.loops) + 1
        self.loops.append(f"!{number} = distinct !{{!{number}, !0}}")
        return f", !llvm.loop !{number}"

    def branch(self, condition: LaneValue, then: str, otherwise: str) -> None:
        self.emit(f"br i1 {condition.text}, label %{then}, label %{otherwise}")

    @contextmanager
    def apart(self, types: Mapping[str, str]) -> Iterator[None]:
        """Write instructions as a function of its own, which is passed the values that they read.

        They stay where they are if they read a value that isn't in `types`, or jump to code outside.
        """
        before, start = (self.lines, self.allocations, self._known), self.block
        self.lines, self.allocations, self._known = [], [], [{}]
        yield
        lines, allocations = self.lines, self.allocations
        self.lines, self.allocations, self._known = before
        text = "\n".join([f"{start}:", *allocations, *lines])
        made = {f"%{name}" for pair in _MADE.findall(text) for name in pair}
        # LLVM has numbers as names only in their order.
        read = sorted({*_NAME.findall(text)} - made, key=lambda name: (len(name), name))
        if any(name not in types for name in read):
            self.lines += lines
            self.allocations += allocations
            return
        passed, name = ", ".join(f"{types[name]} {name}" for name in read), self.name()[1:]
        self.declared[f"part{name}"] = (
            f"define internal void @part{name}({passed}) noinline #1 {{\n{text}\n  ret void\n}}"
        )
        self.emit(f"call void @part{name}({passed})")
        self.block = start

    @contextmanager
    def nested(self) -> Iterator[None]:
        """A scope that doesn't dominate the code after it: its instructions are forgotten at its end."""
        self._known.append({})
        yield
        self._known.pop()


_NAME = re.compile(r"%[\w.]+")
_MADE = re.compile(r"^(?:  %([\w.]+) = |([\w.]+):$)", re.MULTILINE)
_BITS = {dtype.bits: dtype for dtype in (u8, u16, u32, u64)}
_NARROWEST = 128  # bits of the smallest vector register

# The last operands of some AVX-512 instructions: the value of masked lanes, the mask, and the current rounding mode.
_ALL_LANES = (constant(0.0, f32, 16), constant(-1, i16), constant(4, i32))


class Instructions:
    """Operands of one instruction have the same number of lanes."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.cast_floats: set[str] = set()  # names of floats that were cast from another float type

    # Vectors.

    def splat(self, value: LaneValue, lanes: int) -> LaneValue:
        if value.lanes or not lanes:
            return value
        if value.number is not None:
            return constant(value.number, value.dtype, lanes)
        into = vector_of(type_of(value.dtype), lanes)
        first = self.builder.pure(f"insertelement {into} poison, {value.typed}, i64 0")
        text = self.builder.pure(
            f"shufflevector {into} {first}, {into} poison, <{lanes} x i32> zeroinitializer"
        )
        return LaneValue(text, value.dtype, lanes)

    def any(self, mask: LaneValue) -> LaneValue:
        """Whether a mask holds on any lane."""
        if not mask.lanes:
            return mask
        bits = self.builder.pure(f"bitcast {mask.typed} to i{mask.lanes}")
        return LaneValue(self.builder.pure(f"icmp ne i{mask.lanes} {bits}, 0"), boolean)

    def lane(self, value: LaneValue, number: LaneValue) -> LaneValue:
        """The value of one lane."""
        if not value.lanes:
            return value
        text = self.builder.pure(f"extractelement {value.typed}, {number.typed}")
        return LaneValue(text, value.dtype)

    def first(self, value: LaneValue, mask: LaneValue | None = None) -> LaneValue:
        """The value of the first lane on which a mask holds; an arbitrary lane's where it holds nowhere."""
        if not value.lanes:
            return value
        if mask is None:
            return LaneValue(self.builder.pure(f"extractelement {value.typed}, i64 0"), value.dtype)
        bits = self.builder.pure(f"bitcast {mask.typed} to i{mask.lanes}")
        kind = f"i{mask.lanes}"
        self.builder.declare(kind, f"llvm.cttz.{kind}", kind, "i1")
        lane = self.builder.pure(f"call {kind} @llvm.cttz.{kind}({kind} {bits}, i1 true)")
        text = self.builder.pure(f"extractelement {value.typed}, {kind} {lane}")
        return LaneValue(text, value.dtype)

    def shuffled(
        self, value: LaneValue, picks: Sequence[int | None], behind: LaneValue | None = None
    ) -> LaneValue:
        """Lanes picked by number from a vector, or from it followed by `behind`; None is an undefined lane."""
        other = f"{value.type} poison" if behind is None else behind.typed
        numbers = ", ".join(f"i32 {'poison' if lane is None else lane}" for lane in picks)
        text = self.builder.pure(
            f"shufflevector {value.typed}, {other}, <{len(picks)} x i32> <{numbers}>"
        )
        return LaneValue(text, value.dtype, len(picks))

    def _joined(self, parts: list[LaneValue]) -> LaneValue:
        """Concatenate vectors; their number is a power of two."""
        while len(parts) > 1:
            parts = [
                self.shuffled(a, range(a.lanes + b.lanes), b)
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    # Opaque values.

    def unknown(self, value: LaneValue) -> LaneValue:
        """Hide a value from LLVM's optimizations, at no cost in instructions."""
        if not value.lanes:
            return self.first(self.unknown(self.splat(value, _NARROWEST // value.dtype.bits)))
        bits = self.bitcast(value, _BITS[value.dtype.bits])
        lanes = bits.lanes
        least, most = _NARROWEST // bits.dtype.bits, self.builder.bits // bits.dtype.bits
        if lanes < least:
            parts = [self.shuffled(bits, [*range(lanes), *[None] * (least - lanes)])]
        elif lanes > most:
            firsts = range(0, lanes, most)
            parts = [self.shuffled(bits, range(first, first + most)) for first in firsts]
        else:
            parts = [bits]
        whole = self._joined(
            [
                replace(part, text=self.builder.pure(self.builder.unknown(part.type, part.text)))
                for part in parts
            ]
        )
        if lanes < least:
            whole = self.shuffled(whole, range(lanes))
        return self.bitcast(whole, value.dtype)

    def select(self, condition: LaneValue, then: Operand, otherwise: Operand) -> LaneValue:
        if not isinstance(then, LaneValue):
            assert isinstance(otherwise, LaneValue)
            then = like(otherwise, then)
        otherwise = like(then, otherwise)
        if condition.number is not None:
            return then if condition.number else otherwise
        if then.text == otherwise.text:
            return then
        if then.dtype.is_float and 0 in (then.number, otherwise.number):
            # LLVM selects before it casts, and loses the sign of a zero: tests/backend/cpu/llvm.
            then, otherwise = (
                self.unknown(arm) if arm.text in self.cast_floats else arm
                for arm in (then, otherwise)
            )
        text = self.builder.pure(f"select {condition.typed}, {then.typed}, {otherwise.typed}")
        return LaneValue(text, then.dtype, then.lanes)

    def bitcast(self, value: LaneValue, dtype: DType) -> LaneValue:
        """Reinterpret the bits as another type of the same size."""
        if type_of(value.dtype) == type_of(dtype):
            return replace(value, dtype=dtype, number=None)
        into = type_of(dtype, value.lanes)
        return LaneValue(self.builder.pure(f"bitcast {value.typed} to {into}"), dtype, value.lanes)

    def _cast(self, instruction: str, value: LaneValue, dtype: DType) -> LaneValue:
        into = type_of(dtype, value.lanes)
        if type_of(value.dtype, value.lanes) == into:
            return replace(value, dtype=dtype)
        text = self.builder.pure(f"{instruction} {value.typed} to {into}")
        if instruction in ("fpext", "fptrunc"):
            self.cast_floats.add(text)
        return LaneValue(text, dtype, value.lanes)

    # By name.

    def _plain(self, instruction: str, a: LaneValue, b: LaneValue) -> LaneValue:
        text = self.builder.pure(f"{instruction} {a.typed}, {b.text}")
        return LaneValue(text, a.dtype, a.lanes)

    def _intrinsic(self, name: str, result: LaneValue, *operands: LaneValue) -> LaneValue:
        """An intrinsic that is overloaded on the type of its result."""
        suffix = suffix_of(result.dtype, result.lanes)
        types = [operand.type for operand in operands]
        function = f"llvm.{name}.{suffix}"
        self.builder.declare(result.type, function, *types)
        listed = ", ".join(operand.typed for operand in operands)
        text = self.builder.pure(f"call {result.type} @{function}({listed})")
        return LaneValue(text, result.dtype, result.lanes)

    def saturating_sum(self, a: LaneValue, b: LaneValue) -> LaneValue:
        """a + b, clamped to the range of the type."""
        return self._intrinsic("sadd.sat", a, a, b)

    def saturating_difference(self, a: LaneValue, b: LaneValue) -> LaneValue:
        """a - b, clamped to the range of the type."""
        return self._intrinsic("ssub.sat", a, a, b)

    # Only on AVX-512.

    def scale(self, value: LaneValue, power: LaneValue) -> LaneValue | None:
        """value * 2**power, rounded once, for integer powers; None where no instruction computes it."""
        if not is_avx512(value):
            return None
        return self._avx512("mask.scalef.ps.512", f32, value, power, *_ALL_LANES)

    def pick(self, numbers: Sequence[float], index: LaneValue) -> LaneValue | None:
        """numbers[index % 32] of 32 f32; None where no instruction computes it."""
        if not is_avx512(LaneValue(index.text, f32, index.lanes)):
            return None
        low, high = constants(numbers[:16], f32), constants(numbers[16:], f32)
        return self._avx512("vpermi2var.ps.512", f32, low, index, high)

    def _avx512(self, name: str, dtype: DType, *operands: LaneValue) -> LaneValue:
        """An instruction whose result has 16 numbers, once for every 16 of the operands' lanes."""
        lanes = max(operand.lanes for operand in operands)
        function, kind = f"llvm.x86.avx512.{name}", type_of(dtype, 16)
        types = [type_of(o.dtype, min(o.lanes, 16)) for o in operands]
        self.builder.declare(kind, function, *types)
        parts = []
        for first in range(0, lanes, 16):
            listed = [self._sixteen(o, first) if o.lanes == lanes else o for o in operands]
            text = ", ".join(operand.typed for operand in listed)
            parts.append(
                LaneValue(self.builder.pure(f"call {kind} @{function}({text})"), dtype, 16)
            )
        return self._joined(parts)

    def _sixteen(self, value: LaneValue, first: int) -> LaneValue:
        """Sixteen of a vector's lanes, from `first` on."""
        if value.lanes == 16:
            return value
        if value.number is not None:
            return constant(value.number, value.dtype, 16)
        return self.shuffled(value, range(first, first + 16))


def is_avx512(value: LaneValue) -> bool:
    """Whether a value fits whole registers of AVX-512, the only target with 16 numbers of 32 bits in a vector."""
    return value.dtype is f32 and value.lanes >= 16


def suffix_of(dtype: DType, lanes: int) -> str:
    """A type as LLVM's overloaded names spell it."""
    plain = {"f16": "f16", "f32": "f32", "f64": "f64", "tf32": "f32", "bool": "i1"}
    name = plain.get(dtype.name) or f"i{dtype.bits}"
    return f"v{lanes}{name}" if lanes != SCALAR else name
