"""LLVM IR as text, one instruction at a time.

Every value is a `Value`: a scalar, or a vector of one scalar for each lane. A pure instruction that was already
written in this block, or in one that dominates it, is reused: unrolled code repeats itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite

from taskc.ir.types import DType, boolean, i64

SCALAR = 0


@dataclass(frozen=True, slots=True)
class Value:
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


def type_of(dtype: DType, lanes: int = SCALAR) -> str:
    """The LLVM type of a value."""
    return vector_of(_TYPES.get(dtype.name) or f"i{dtype.bits}", lanes)


def stored_type(dtype: DType, lanes: int = SCALAR) -> str:
    """The LLVM type of a value in memory, where a bool takes a byte."""
    return vector_of("i8", lanes) if dtype is boolean else type_of(dtype, lanes)


def vector_of(element: str, lanes: int) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def constant(number: bool | int | float, dtype: DType, lanes: int = SCALAR) -> Value:
    """A constant, the same on all lanes."""
    text = _constant_text(number, dtype)
    if lanes:
        text = f"splat ({type_of(dtype)} {text})"
    return Value(text, dtype, lanes, number)


def constants(numbers: Sequence[int | float], dtype: DType = i64) -> Value:
    """A constant vector."""
    if len(set(numbers)) == 1:
        return constant(numbers[0], dtype, len(numbers))
    items = ", ".join(f"{type_of(dtype)} {_constant_text(number, dtype)}" for number in numbers)
    return Value(f"<{items}>", dtype, len(numbers))


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
    most      limit of lines, None for none
    loops     metadata of loops that LLVM must not unroll, a line each
    """

    register: str = "x"
    bits: int = 128
    pieces: int = 1
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
        return next((known[text] for known in reversed(self._known) if text in known), None)

    def unknown(self, kind: str, text: str) -> str:
        """An empty inline assembly that returns the vector unchanged and that no optimization sees through.

        The vector has to fit into one register.

        No instruction, but a wall that no optimization looks through.
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

    def branch(self, condition: Value, then: str, otherwise: str) -> None:
        self.emit(f"br i1 {condition.text}, label %{then}, label %{otherwise}")

    @contextmanager
    def nested(self) -> Iterator[None]:
        """A scope that doesn't dominate the code after it: its instructions are forgotten at its end."""
        self._known.append({})
        yield
        self._known.pop()
