"""Scalar operations on values, the same for a scalar and for all lanes; see taskc/ir/arithmetic.py.

Types the processor lacks are emulated: f16 and bf16 are computed in f32 and rounded.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.backend.cpu.builder import Value, constant, constants, vector_of
from taskc.backend.cpu.instructions import suffix_of
from taskc.backend.cpu.native import Native
from taskc.ir import arithmetic
from taskc.ir.types import DType, bf16, boolean, f16, f32, f64, i16, i32, i64, tf32, u32

_NARROW = (f16, bf16)


class Elementwise(Native):
    def offset(self, base: Value, offsets: tuple[int, ...]) -> Value:
        """base + offsets[lane]."""
        vector = self.splat(base, len(offsets))
        return self.binary("+", vector, constants(offsets, base.dtype)) if any(offsets) else vector

    def binary(self, operator: str, a: Value, b: Value) -> Value:
        if a.dtype not in _NARROW:
            return super().binary(operator, a, b)
        result = super().binary(operator, self.convert(a, f32), self.convert(b, f32))
        if operator in ("min", "max") and a.dtype is bf16:
            return self._upper_half(result)  # one of the two operands, which needs no rounding
        return result if result.dtype is boolean else self.convert(result, a.dtype)

    def unary(self, operator: str, a: Value) -> Value:
        if a.dtype not in _NARROW:
            return super().unary(operator, a)
        result = super().unary(operator, self.convert(a, f32))
        return result if result.dtype is boolean else self.convert(result, a.dtype)

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        return self.fused_in_f64(a, b, c) if a.dtype in _NARROW else super().fused(a, b, c)

    def fused_in_f64(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c of at most 32 bits: the product is exact in f64, and the sum is rounded to odd there, so that only
        the final rounding counts.
        """
        x, y, z = (self.convert(value, f64) for value in (a, b, c))
        product = self.binary("*", x, y)
        total = self.binary("+", product, z)
        of_z = self.binary("-", total, product)
        error = self.binary(
            "+",
            self.binary("-", product, self.binary("-", total, of_z)),
            self.binary("-", z, of_z),
        )
        return self.convert(self.to_odd(total, error), a.dtype)

    def to_odd(self, nearest: Value, error: Value) -> Value:
        """nearest + error rounded to odd, where `nearest` is that sum rounded to nearest."""
        integer = i64 if nearest.dtype is f64 else i32
        lanes = nearest.lanes
        size = self._intrinsic("fabs", error, error)
        inexact = self.binary(">", size, constant(0.0, nearest.dtype, lanes))
        bits = self.bitcast(nearest, integer)
        signs = self.binary("^", bits, self.bitcast(error, integer))
        nearer = self.binary(">>", signs, constant(integer.bits - 1, integer, lanes))  # -1: to zero
        odd = self.binary("|", self.binary("+", bits, nearer), constant(1, integer, lanes))
        return self.bitcast(self.select(inexact, odd, bits), nearest.dtype)

    # Conversions.

    def convert(self, value: Value, dtype: DType) -> Value:
        source, lanes = value.dtype, value.lanes
        if source is dtype:
            return value
        if value.number is not None:
            array = arithmetic.convert(arithmetic.as_storage(value.number, source), source, dtype)
            return constant(array.item(), dtype, lanes)
        if source is tf32:  # the low bits don't count
            upper = self.binary("&", self.bitcast(value, i32), constant(-0x2000, i32, lanes))
            return self.convert(self.bitcast(upper, f32), dtype)
        if dtype is boolean:
            wide = value if not source.is_float or source.bits >= 32 else self.convert(value, f32)
            zero = constant(0.0 if source.is_float else 0, wide.dtype, lanes)
            return self.binary("!=", wide, zero)
        if not source.is_float:
            return self._from_integer(value, dtype)
        if source.bits == 16 or source.bits == 8:
            return self.convert(self._widened(value), dtype)
        if dtype.is_float:
            return self._narrowed(value, dtype)
        if dtype.bits < 32:
            return self._to_short(value, dtype)
        kind = "fptosi" if dtype.kind == "int" else "fptoui"
        result = Value("", dtype, lanes)
        function = f"llvm.{kind}.sat.{suffix_of(dtype, lanes)}.{suffix_of(source, lanes)}"
        self.builder.declare(result.type, function, value.type)
        return replace(
            result, text=self.builder.pure(f"call {result.type} @{function}({value.typed})")
        )

    def _to_short(self, value: Value, dtype: DType) -> Value:
        """Convert to an 8- or 16-bit integer through i32: LLVM scalarizes the direct conversion of vectors."""
        source, lanes = value.dtype, value.lanes
        ends = (constant(float(end), source, lanes) for end in (dtype.minimum, dtype.maximum))
        low, high = ends
        # NaN becomes the minimum, which is 0 for unsigned types.
        clamped = self.select(self.binary(">", value, low), value, low)
        clamped = self.select(self.binary("<", clamped, high), clamped, high)
        whole = self._cast("fptosi", clamped, i32)
        if dtype.is_signed:
            zero = constant(0, i32, lanes)
            whole = self.select(self.unary("isnan", value), zero, whole)
        return self._cast("trunc", whole, dtype)

    def _from_integer(self, value: Value, dtype: DType) -> Value:
        source, lanes = value.dtype, value.lanes
        is_signed = source.kind == "int"
        if dtype.is_integer:
            if dtype.bits > source.bits or source is boolean:
                return self._cast("sext" if is_signed else "zext", value, dtype)
            return self._cast("trunc", value, dtype)
        instruction = "sitofp" if is_signed else "uitofp"
        if dtype in (f32, f64):
            return self._cast(instruction, value, dtype)
        if source.bits == 64:
            # f64 would round. At 2**53 and above, fold the low 11 bits to odd: 53 bits stay.
            low = self.binary("&", value, constant(0x7FF, source, lanes))
            high = self.binary("-", value, low)
            sticky = self.binary("|", high, constant(0x800, source, lanes))
            inexact = self.binary("!=", low, constant(0, source, lanes))
            folded = self.select(inexact, sticky, high)
            large = self.binary(">=", value, constant(2**53, source, lanes))
            if is_signed:
                small = self.binary("<=", value, constant(-(2**53), source, lanes))
                large = self._plain("or", large, small)
            value = self.select(large, folded, value)
        return self._narrowed(self._cast(instruction, value, f64), dtype)

    def _widened(self, value: Value) -> Value:
        """Convert f16, bf16 or f8 to f32, which is exact."""
        source, lanes = value.dtype, value.lanes
        if source is f16:
            return self._cast("fpext", value, f32)
        if source is bf16:
            wide = self._cast("zext", value, i32)
            return self.bitcast(self.binary("<<", wide, constant(16, i32, lanes)), f32)
        # f8e5m2 is the upper half of an f16; f8e4m3 has an exponent range of its own.
        bits = self._cast("zext", value, i16)
        if source.exponent_bits == 5:
            return self._widened(
                self.bitcast(self.binary("<<", bits, constant(8, i16, lanes)), f16)
            )
        # With its fields where f16 has them, the exponent's bias is 8 too small: scale by 2**8.
        sign = self.binary(
            "<<", self.binary("&", bits, constant(0x80, i16, lanes)), constant(8, i16, lanes)
        )
        magnitude = self.binary("&", bits, constant(0x7F, i16, lanes))
        shifted = self.binary("<<", magnitude, constant(7, i16, lanes))
        half = self._widened(self.bitcast(self.binary("|", sign, shifted), f16))
        scaled = self.binary("*", half, constant(256.0, f32, lanes))
        is_nan = self.binary("==", magnitude, constant(0x7F, i16, lanes))
        return self.select(is_nan, constant(float("nan"), f32, lanes), scaled)

    def _narrowed(self, value: Value, dtype: DType) -> Value:
        """Round an f32 or f64 once to a narrower float type."""
        source, lanes = value.dtype, value.lanes
        if dtype is f64:
            return self._cast("fpext", value, f64)
        if source is f64:
            nearest = self._cast("fptrunc", value, f32)
            if dtype is f32:
                return nearest
            back = self._cast("fpext", nearest, f64)
            error = self._cast("fptrunc", self.binary("-", value, back), f32)
            value = self.to_odd(nearest, error)
        if dtype is f16:
            return self._cast("fptrunc", value, f16)
        if dtype is f32:
            return replace(value, dtype=f32)
        bits = self.bitcast(value, i32)
        is_nan = self.unary("isnan", replace(value, dtype=f32))
        if dtype is tf32:
            moved = self.binary("+", bits, constant(0x1000, i32, lanes))
            quiet = self.binary("|", bits, constant(0x400000, i32, lanes))
            kept = self.select(is_nan, quiet, moved)
            return self.bitcast(self.binary("&", kept, constant(-0x2000, i32, lanes)), dtype)
        if dtype is bf16:
            up = self._shift(">>", self.bitcast(bits, u32), constant(16, u32, lanes))
            odd = self.bitcast(self.binary("&", up, constant(1, u32, lanes)), i32)
            moved = self.binary("+", self.binary("+", bits, constant(0x7FFF, i32, lanes)), odd)
            quiet = self.binary("|", bits, constant(0x400000, i32, lanes))
            return self._upper_half(self.select(is_nan, quiet, moved))
        return self._to_f8(value, dtype)

    def _upper_half(self, value: Value) -> Value:
        """The upper half of 32 bits as bf16."""
        top = self._shift(">>", self.bitcast(value, u32), constant(16, u32, value.lanes))
        return replace(self._cast("trunc", top, i16), dtype=bf16)

    def _to_f8(self, value: Value, dtype: DType) -> Value:
        """Rounds by adding a magic number whose last bit has the weight of the result's last bit."""
        lanes = value.lanes
        largest = constant(dtype.maximum, f32, lanes)
        size = self._intrinsic("minnum", value, self._intrinsic("fabs", value, value), largest)
        bits = self.bitcast(size, i32)
        mantissa = dtype.mantissa_bits
        bias = 2 ** (dtype.exponent_bits - 1) - 1
        # The exponent of the last bit: that of the value, or of the smallest normal number.
        exponent = self.binary(">>", bits, constant(23, i32, lanes))
        exponent = self._intrinsic("smax", exponent, exponent, constant(128 - bias, i32, lanes))
        unit = self.binary("+", exponent, constant(23 - mantissa, i32, lanes))
        magic = self.bitcast(self.binary("<<", unit, constant(23, i32, lanes)), f32)
        whole = self.binary("-", self.binary("+", size, magic), magic)
        # Rounded, the value is a small multiple of that unit, so that the f32's bits give the fields.
        scaled = self.bitcast(
            self.binary("*", whole, constant(2.0 ** (bias - 127), f32, lanes)), i32
        )
        fields = self.binary(">>", scaled, constant(23 - mantissa, i32, lanes))
        sign = self.binary("&", self.bitcast(value, i32), constant(-(2**31), i32, lanes))
        top = self._shift(">>", self.bitcast(sign, u32), constant(24, u32, lanes))
        is_nan = self.unary("isnan", replace(value, dtype=f32))
        fields = self.select(is_nan, constant(0x7F if mantissa == 3 else 0x7E, i32, lanes), fields)
        joined = self.binary("|", fields, self.bitcast(top, i32))
        narrow = self.builder.pure(f"trunc {joined.typed} to {vector_of('i8', lanes)}")
        return Value(narrow, dtype, lanes)
