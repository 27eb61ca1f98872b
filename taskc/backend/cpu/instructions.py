"""Single LLVM instructions on values: splitting and joining vectors, intrinsics by name, and AVX-512's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.backend.cpu.builder import (
    SCALAR,
    Builder,
    Value,
    constant,
    constants,
    type_of,
    vector_of,
)
from taskc.ir.types import DType, boolean, f32, i16, i32, u8, u16, u32, u64

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

    def splat(self, value: Value, lanes: int) -> Value:
        if value.lanes or not lanes:
            return value
        if value.number is not None:
            return constant(value.number, value.dtype, lanes)
        into = vector_of(type_of(value.dtype), lanes)
        first = self.builder.pure(f"insertelement {into} poison, {value.typed}, i64 0")
        text = self.builder.pure(
            f"shufflevector {into} {first}, {into} poison, <{lanes} x i32> zeroinitializer"
        )
        return Value(text, value.dtype, lanes)

    def any(self, mask: Value) -> Value:
        """Whether a mask holds on any lane."""
        if not mask.lanes:
            return mask
        bits = self.builder.pure(f"bitcast {mask.typed} to i{mask.lanes}")
        return Value(self.builder.pure(f"icmp ne i{mask.lanes} {bits}, 0"), boolean)

    def lane(self, value: Value, number: Value) -> Value:
        """The value of one lane."""
        if not value.lanes:
            return value
        text = self.builder.pure(f"extractelement {value.typed}, {number.typed}")
        return Value(text, value.dtype)

    def first(self, value: Value, mask: Value | None = None) -> Value:
        """The value of the first lane on which a mask holds; an arbitrary lane's where it holds nowhere."""
        if not value.lanes:
            return value
        if mask is None:
            return Value(self.builder.pure(f"extractelement {value.typed}, i64 0"), value.dtype)
        bits = self.builder.pure(f"bitcast {mask.typed} to i{mask.lanes}")
        kind = f"i{mask.lanes}"
        self.builder.declare(kind, f"llvm.cttz.{kind}", kind, "i1")
        lane = self.builder.pure(f"call {kind} @llvm.cttz.{kind}({kind} {bits}, i1 true)")
        text = self.builder.pure(f"extractelement {value.typed}, {kind} {lane}")
        return Value(text, value.dtype)

    def shuffled(
        self, value: Value, picks: Sequence[int | None], behind: Value | None = None
    ) -> Value:
        """Lanes picked by number from a vector, or from it followed by `behind`; None is an undefined lane."""
        other = f"{value.type} poison" if behind is None else behind.typed
        numbers = ", ".join(f"i32 {'poison' if lane is None else lane}" for lane in picks)
        text = self.builder.pure(
            f"shufflevector {value.typed}, {other}, <{len(picks)} x i32> <{numbers}>"
        )
        return Value(text, value.dtype, len(picks))

    def _joined(self, parts: list[Value]) -> Value:
        """Concatenate vectors; their number is a power of two."""
        while len(parts) > 1:
            parts = [
                self.shuffled(a, range(a.lanes + b.lanes), b)
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    # Opaque values.

    def unknown(self, value: Value) -> Value:
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

    def select(self, condition: Value, then: Value, otherwise: Value) -> Value:
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
        return replace(then, text=text, number=None)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        """Reinterpret the bits as another type of the same size."""
        if type_of(value.dtype) == type_of(dtype):
            return replace(value, dtype=dtype, number=None)
        into = type_of(dtype, value.lanes)
        return Value(self.builder.pure(f"bitcast {value.typed} to {into}"), dtype, value.lanes)

    def _cast(self, instruction: str, value: Value, dtype: DType) -> Value:
        into = type_of(dtype, value.lanes)
        if type_of(value.dtype, value.lanes) == into:
            return replace(value, dtype=dtype)
        text = self.builder.pure(f"{instruction} {value.typed} to {into}")
        if instruction in ("fpext", "fptrunc"):
            self.cast_floats.add(text)
        return Value(text, dtype, value.lanes)

    # By name.

    def _plain(self, instruction: str, a: Value, b: Value) -> Value:
        return replace(a, text=self.builder.pure(f"{instruction} {a.typed}, {b.text}"), number=None)

    def _intrinsic(self, name: str, result: Value, *operands: Value) -> Value:
        """An intrinsic that is overloaded on the type of its result."""
        suffix = suffix_of(result.dtype, result.lanes)
        types = [operand.type for operand in operands]
        function = f"llvm.{name}.{suffix}"
        self.builder.declare(result.type, function, *types)
        listed = ", ".join(operand.typed for operand in operands)
        text = self.builder.pure(f"call {result.type} @{function}({listed})")
        return Value(text, result.dtype, result.lanes)

    def saturating_sum(self, a: Value, b: Value) -> Value:
        """a + b, clamped to the range of the type."""
        return self._intrinsic("sadd.sat", a, a, b)

    def saturating_difference(self, a: Value, b: Value) -> Value:
        """a - b, clamped to the range of the type."""
        return self._intrinsic("ssub.sat", a, a, b)

    # Only on AVX-512.

    def scale(self, value: Value, power: Value) -> Value | None:
        """value * 2**power, rounded once, for integer powers; None where no instruction computes it."""
        if not is_avx512(value):
            return None
        return self._avx512("mask.scalef.ps.512", f32, value, power, *_ALL_LANES)

    def pick(self, numbers: Sequence[float], index: Value) -> Value | None:
        """numbers[index % 32] of 32 f32; None where no instruction computes it."""
        if not is_avx512(replace(index, dtype=f32)):
            return None
        low, high = constants(numbers[:16], f32), constants(numbers[16:], f32)
        return self._avx512("vpermi2var.ps.512", f32, low, index, high)

    def _avx512(self, name: str, dtype: DType, *operands: Value) -> Value:
        """An instruction whose result has 16 numbers, once for every 16 of the operands' lanes."""
        lanes = max(operand.lanes for operand in operands)
        function, kind = f"llvm.x86.avx512.{name}", type_of(dtype, 16)
        types = [replace(o, lanes=min(o.lanes, 16)).type for o in operands]
        self.builder.declare(kind, function, *types)
        parts = []
        for first in range(0, lanes, 16):
            listed = [self._sixteen(o, first) if o.lanes == lanes else o for o in operands]
            text = ", ".join(operand.typed for operand in listed)
            parts.append(Value(self.builder.pure(f"call {kind} @{function}({text})"), dtype, 16))
        return self._joined(parts)

    def _sixteen(self, value: Value, first: int) -> Value:
        """Sixteen of a vector's lanes, from `first` on."""
        if value.lanes == 16:
            return value
        if value.number is not None:
            return constant(value.number, value.dtype, 16)
        return self.shuffled(value, range(first, first + 16))


def is_avx512(value: Value) -> bool:
    """Whether a value fits whole registers of AVX-512, the only target with 16 numbers of 32 bits in a vector."""
    return value.dtype is f32 and value.lanes >= 16


def suffix_of(dtype: DType, lanes: int) -> str:
    """A type as LLVM's overloaded names spell it."""
    plain = {"f16": "f16", "f32": "f32", "f64": "f64", "tf32": "f32", "bool": "i1"}
    name = plain.get(dtype.name) or f"i{dtype.bits}"
    return f"v{lanes}{name}" if lanes != SCALAR else name
