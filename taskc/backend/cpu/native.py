"""Scalar operations on values, the same for a scalar and for all lanes.

They follow taskc/ir/arithmetic.py, from which LLVM's instructions differ at the edges: division by 0, shifts by the
width or more, signed zeros. `Native` has the types of the processor: integers, booleans, f32 and f64. `Elementwise`
adds those that it lacks: f16 and bf16 are computed in f32 and rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import copysign, isnan

from taskc.backend.cpu.instructions import (
    Instructions,
    LaneValue,
    Operand,
    constant,
    constants,
    is_avx512,
    like,
    suffix_of,
    vector_of,
)
from taskc.errors import InternalError
from taskc.ir import arithmetic
from taskc.ir.arithmetic import COMPARISONS
from taskc.ir.types import DType, bf16, boolean, f16, f32, f64, i16, i32, i64, tf32, u32

_SIGNED = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}
_UNSIGNED = {"<": "ult", "<=": "ule", ">": "ugt", ">=": "uge", "==": "eq", "!=": "ne"}
# Every comparison with NaN is false, except !=.
_FLOAT = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}
_PLAIN = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_FLOAT_PLAIN = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_ROUNDINGS = {
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
    "trunc": "trunc",
    "sqrt": "sqrt",
}
_BITS = {"popcount": "ctpop", "reverse_bits": "bitreverse"}
_ZEROS = {"leading_zeros": "ctlz", "trailing_zeros": "cttz"}
_FOLDED = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


class Native(Instructions):
    def binary(self, operator: str, a: LaneValue, b: Operand) -> LaneValue:
        b = like(a, b)
        if a.lanes != b.lanes:
            raise InternalError(f"{a.typed} {operator} {b.typed}: not of as many lanes")
        if not a.lanes and a.number is not None and b.number is not None:
            return self._folded(operator, a, b)
        dtype, lanes = a.dtype, a.lanes
        if operator in COMPARISONS:
            if dtype.is_float:
                text = f"fcmp {_FLOAT[operator]}"
            else:
                text = f"icmp {(_SIGNED if dtype.kind == 'int' else _UNSIGNED)[operator]}"
            return LaneValue(self.builder.pure(f"{text} {a.typed}, {b.text}"), boolean, lanes)
        if operator in ("and", "or"):
            return self._plain(operator, a, b)
        if operator in ("min", "max"):
            return self._extreme(operator, a, b)
        if dtype.is_float:
            if operator in _FLOAT_PLAIN:
                return self._plain(_FLOAT_PLAIN[operator], a, b)
            if operator in ("//", "%"):
                return self._float_division(operator, a, b)
            if operator == "fmod":
                return self._plain("frem", a, b)
            raise InternalError(f"no code for {operator!r} on {dtype}")
        if operator in ("//", "%"):
            return self._division(operator, a, b)
        if operator in ("<<", ">>"):
            return self._shift(operator, a, b)
        if operator == "dot_bytes":
            return self._dot_bytes(a, b)
        simple = self._identity(operator, a, b)
        return simple if simple is not None else self._plain(_PLAIN[operator], a, b)

    def _dot_bytes(self, a: LaneValue, b: LaneValue) -> LaneValue:
        bits, total = a.dtype.bits, constant(0, a.dtype, a.lanes)
        for place in range(0, bits, 8):
            signed = self.binary(">>", self.binary("<<", a, bits - 8 - place), bits - 8)
            unsigned = self.binary("&", self.binary(">>", b, place), 255)
            total = self.binary("+", total, self.binary("*", signed, unsigned))
        return total

    def _folded(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue:
        if a.dtype is i64 and operator in _FOLDED:
            return constant(_FOLDED[operator](a.number, b.number), i64)
        assert a.number is not None
        assert b.number is not None
        result = arithmetic.binary(operator, a.number, b.number, a.dtype).item()
        return constant(result, boolean if operator in COMPARISONS else a.dtype)

    def _identity(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue | None:
        """x + 0, x * 1 and the like, for integers."""
        if operator in "+-" and b.number == 0:
            return a
        if operator == "+" and a.number == 0:
            return b
        if operator == "*" and b.number == 1:
            return a
        if operator == "*" and a.number == 1:
            return b
        return None

    def _extreme(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue:
        if a.dtype is boolean:
            return self._plain("and" if operator == "min" else "or", a, b)
        if a.dtype.is_float and a.number is not None:
            return self._extreme_with_constant(operator, a, b)
        if a.dtype.is_float and b.number is not None:
            return self._extreme_with_constant(operator, b, a)
        if a.dtype.is_float:
            return self._extreme_of_numbers(operator, a, b)
        return self._intrinsic(("s" if a.dtype.kind == "int" else "u") + operator, a, a, b)

    def _extreme_with_constant(self, operator: str, limit: LaneValue, x: LaneValue) -> LaneValue:
        """One instruction, which returns x for equal or NaN operands; adding 0 turns -0 into 0."""
        number = float(limit.number)  # type: ignore[arg-type]
        is_negative = copysign(1, number) < 0
        if isnan(number) or (number == 0 and operator == "min" and is_negative):
            return self._extreme_of_numbers(operator, limit, x)
        compare = "<" if operator == "min" else ">"
        chosen = self.select(self.binary(compare, limit, x), limit, x)
        if number == 0 and operator == "max" and not is_negative:
            return self.binary("+", chosen, 0.0)
        return chosen

    def _extreme_of_numbers(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue:
        """The processor's instruction returns its second operand if both are equal or one is NaN.

        So the two orders differ only in a zero's sign, or are a number and NaN. An `or` of both gives every bit, NaN
        included, except the sign of a maximum, which is the `and` of both. (LLVM lowers llvm.maximum and minimum to
        code that loses a signaling NaN: tests/backend/cpu/llvm.)
        """
        compare = "<" if operator == "min" else ">"
        first = self.select(self.binary(compare, a, b), a, b)
        second = self.select(self.binary(compare, b, a), b, a)
        integer = i32 if a.dtype is f32 else i64
        x, y = self.bitcast(first, integer), self.bitcast(second, integer)
        either = self.binary("|", x, y)
        if operator == "min":
            return self.bitcast(either, a.dtype)
        sign = constant(-(2 ** (integer.bits - 1)), integer, a.lanes)
        if is_avx512(a):  # LLVM needs two instructions for it
            chosen = self._avx512("pternlog.d.512", i32, x, y, sign, constant(0b11010100, i32))
        else:
            differ = self.binary("&", self.binary("^", x, y), sign)
            chosen = self.binary("^", either, differ)
        return self.bitcast(chosen, a.dtype)

    def _division(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue:
        """Python's division, rounded down; a divisor of 0 gives 0."""
        dtype, lanes = a.dtype, a.lanes
        zero = constant(0, dtype, lanes)
        is_signed = dtype.kind == "int"
        if b.number is None:
            # The processor traps on division by 0, and of the minimum by -1.
            by_zero = self.binary("==", b, zero)
            safe = self.select(by_zero, 1, b)
            if is_signed:
                minus = self.binary("==", b, -1)
                safe = self.select(minus, 1, safe)
            if lanes:
                # For vectors with masks LLVM rewrites a / (c ? 1 : b) to c ? a : a / b, which still divides by b:
                # tests/backend/cpu/llvm. The program itself may contain that pattern.
                safe = self.unknown(safe)
        else:
            if b.number == 0:
                return zero
            safe = b
        if b.number == -1:
            return self.unary("-", a) if operator == "//" else zero
        quotient = self._plain("sdiv" if is_signed else "udiv", a, safe)
        remainder = self._plain("srem" if is_signed else "urem", a, safe)
        if is_signed:
            mixed = self.binary("<", self.binary("^", remainder, safe), zero)
            wrong = self._plain("and", mixed, self.binary("!=", remainder, zero))
            if operator == "//":
                lower = self.binary("-", quotient, 1)
                quotient = self.select(wrong, lower, quotient)
            else:
                remainder = self.select(wrong, self.binary("+", remainder, safe), remainder)
        result = quotient if operator == "//" else remainder
        if b.number is None:
            if is_signed:
                result = self.select(
                    minus, self.unary("-", a) if operator == "//" else zero, result
                )
            result = self.select(by_zero, zero, result)
        return result

    def _shift(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue:
        """Shift by an unsigned count; a count of the width or more shifts everything out."""
        dtype, lanes = a.dtype, a.lanes
        instruction = "shl" if operator == "<<" else "ashr" if dtype.kind == "int" else "lshr"
        if b.number is not None and 0 <= b.number < dtype.bits:
            return self._plain(instruction, a, b)
        largest = constant(dtype.bits - 1, dtype, lanes)
        fits = LaneValue(self.builder.pure(f"icmp ule {b.typed}, {largest.text}"), boolean, lanes)
        shifted = self._plain(instruction, a, self.select(fits, b, largest))
        if instruction == "ashr":
            return shifted
        return self.select(fits, shifted, 0)

    def _float_division(self, operator: str, a: LaneValue, b: LaneValue) -> LaneValue:
        """Python's division, with NumPy's results for zeros and infinities."""
        dtype, lanes = a.dtype, a.lanes
        zero = constant(0.0, dtype, lanes)
        remainder = self._plain("frem", a, b)
        quotient = self.binary("/", self.binary("-", a, remainder), b)
        is_exact = self.binary("==", remainder, zero)
        opposite = self._plain("xor", self.binary("<", b, zero), self.binary("<", remainder, zero))
        wrong = self._plain("and", opposite, self.unary("not", is_exact))
        if operator == "%":
            signed_zero = self._intrinsic("copysign", a, zero, b)
            result = self.select(wrong, self.binary("+", remainder, b), remainder)
            return self.select(is_exact, signed_zero, result)
        one = constant(1.0, dtype, lanes)
        quotient = self.select(wrong, self.binary("-", quotient, one), quotient)
        lower = self.unary("floor", quotient)
        too_low = self.binary(">", self.binary("-", quotient, lower), 0.5)
        whole = self.select(too_low, self.binary("+", lower, one), lower)
        ratio = self.binary("/", a, b)
        signed_zero = self._intrinsic("copysign", a, zero, ratio)
        whole = self.select(self.binary("==", quotient, zero), signed_zero, whole)
        return self.select(self.binary("==", b, zero), ratio, whole)

    def unary(self, operator: str, a: LaneValue) -> LaneValue:
        dtype, lanes = a.dtype, a.lanes
        if a.number is not None and not lanes:
            result = arithmetic.unary(operator, a.number, dtype).item()
            return constant(result, boolean if operator in ("isnan", "not") else dtype)
        if operator == "not":
            return self._plain("xor", a, constant(True, boolean, lanes))
        if operator == "~":
            return self._plain("xor", a, constant(-1, dtype, lanes))
        if operator in _BITS:
            return self._intrinsic(_BITS[operator], a, a)
        if operator in _ZEROS:  # false: the result for 0 is defined, as the number of bits
            return self._intrinsic(_ZEROS[operator], a, a, constant(False, boolean))
        if dtype.is_integer:
            negative = self._plain("sub", constant(0, dtype, lanes), a)
            if operator == "-":
                return negative
            if dtype.kind == "uint":
                return a
            return self.select(self.binary("<", a, 0), negative, a)
        if operator == "isnan":
            return LaneValue(self.builder.pure(f"fcmp uno {a.typed}, {a.text}"), boolean, lanes)
        if operator == "-":
            return replace(a, text=self.builder.pure(f"fneg {a.typed}"), number=None)
        if operator == "abs":
            return self._intrinsic("fabs", a, a)
        if operator in _ROUNDINGS:
            return self._intrinsic(_ROUNDINGS[operator], a, a)
        raise InternalError(f"no code for {operator!r} on {dtype}")

    def fused(self, a: LaneValue, b: LaneValue, c: LaneValue) -> LaneValue:
        """a * b + c, rounded once."""
        if a.dtype.is_integer:
            return self.binary("+", self.binary("*", a, b), c)
        return self._intrinsic("fma", a, a, b, c)


_NARROW = (f16, bf16)


class Elementwise(Native):
    def offset(self, base: LaneValue, offsets: tuple[int, ...]) -> LaneValue:
        """base + offsets[lane]."""
        vector = self.splat(base, len(offsets))
        return self.binary("+", vector, constants(offsets, base.dtype)) if any(offsets) else vector

    def binary(self, operator: str, a: LaneValue, b: Operand) -> LaneValue:
        if a.dtype not in _NARROW:
            return super().binary(operator, a, b)
        b = like(a, b)
        result = super().binary(operator, self.convert(a, f32), self.convert(b, f32))
        if operator in ("min", "max") and a.dtype is bf16:
            return self._upper_half(result)  # one of the two operands, which needs no rounding
        return result if result.dtype is boolean else self.convert(result, a.dtype)

    def unary(self, operator: str, a: LaneValue) -> LaneValue:
        if a.dtype not in _NARROW:
            return super().unary(operator, a)
        result = super().unary(operator, self.convert(a, f32))
        return result if result.dtype is boolean else self.convert(result, a.dtype)

    def fused(self, a: LaneValue, b: LaneValue, c: LaneValue) -> LaneValue:
        return self.fused_in_f64(a, b, c) if a.dtype in _NARROW else super().fused(a, b, c)

    def fused_in_f64(self, a: LaneValue, b: LaneValue, c: LaneValue) -> LaneValue:
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

    def to_odd(self, nearest: LaneValue, error: LaneValue) -> LaneValue:
        """nearest + error rounded to odd, where `nearest` is that sum rounded to nearest."""
        integer = i64 if nearest.dtype is f64 else i32
        size = self._intrinsic("fabs", error, error)
        inexact = self.binary(">", size, 0.0)
        bits = self.bitcast(nearest, integer)
        signs = self.binary("^", bits, self.bitcast(error, integer))
        nearer = self.binary(">>", signs, integer.bits - 1)  # -1: to zero
        odd = self.binary("|", self.binary("+", bits, nearer), 1)
        return self.bitcast(self.select(inexact, odd, bits), nearest.dtype)

    # Conversions.

    def convert(self, value: LaneValue, dtype: DType) -> LaneValue:
        source, lanes = value.dtype, value.lanes
        if source is dtype:
            return value
        if value.number is not None:
            array = arithmetic.convert(arithmetic.as_storage(value.number, source), source, dtype)
            return constant(array.item(), dtype, lanes)
        if source is tf32:  # the low bits don't count
            upper = self.binary("&", self.bitcast(value, i32), -0x2000)
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
        if source is f32 and dtype is i32 and lanes > 1:
            return self._to_whole(value)
        kind = "fptosi" if dtype.kind == "int" else "fptoui"
        result = LaneValue("", dtype, lanes)
        function = f"llvm.{kind}.sat.{suffix_of(dtype, lanes)}.{suffix_of(source, lanes)}"
        self.builder.declare(result.type, function, value.type)
        return replace(
            result, text=self.builder.pure(f"call {result.type} @{function}({value.typed})")
        )

    def rounded(self, value: LaneValue, *addends: LaneValue, dtype: DType) -> LaneValue:
        """round(value) + addend as a short integer, by the conversion that rounds: whole bounds may be taken first."""
        whole = [self.convert(addend, i32) for addend in addends]
        less = [self.unary("-", self.convert(addend, value.dtype)) for addend in addends]
        return self._to_short(value, dtype, less, whole)

    def _to_short(
        self,
        value: LaneValue,
        dtype: DType,
        less: Sequence[LaneValue] | None = None,
        more: Sequence[LaneValue] = (),
    ) -> LaneValue:
        """Convert to an 8- or 16-bit integer through i32: LLVM scalarizes the direct conversion of vectors.

        less, more  what is added to the bounds, and to the result; without `less` the value is truncated, not rounded
        """
        source, lanes = value.dtype, value.lanes
        ends = [constant(float(end), source, lanes) for end in (dtype.minimum, dtype.maximum)]
        for addend in less or ():
            ends = [self.binary("+", end, addend) for end in ends]
        low, high = ends
        # NaN becomes the minimum, which is 0 for unsigned types.
        clamped = self.select(self.binary(">", value, low), value, low)
        clamped = self.select(self.binary("<", clamped, high), clamped, high)
        whole = self._cast("fptosi", clamped, i32) if less is None else self._nearest(clamped)
        for addend in more:
            whole = self.binary("+", whole, addend)
        if dtype.is_signed:
            zero = constant(0, i32, lanes)
            whole = self.select(self.unary("isnan", value), zero, whole)
        return self._cast("trunc", whole, dtype)

    def _nearest(self, value: LaneValue) -> LaneValue:
        """The nearest i32, the even one of two, of an f32 that has one."""
        result = LaneValue("", i32, value.lanes)
        function = f"llvm.lrint.{suffix_of(i32, value.lanes)}.{suffix_of(f32, value.lanes)}"
        self.builder.declare(result.type, function, value.type)
        text = self.builder.pure(f"call {result.type} @{function}({value.typed})")
        return replace(result, text=text)

    def _to_whole(self, value: LaneValue) -> LaneValue:
        """Convert f32 to i32 without LLVM's saturation, which is scalar: NaN and large numbers are replaced."""
        low, zero = constant(float(i32.minimum), f32, value.lanes), constant(0, i32, value.lanes)
        is_large = self.binary(">=", value, constant(-float(i32.minimum), f32, value.lanes))
        clamped = self.select(self.binary(">", value, low), value, low)
        whole = self._cast("fptosi", self.select(is_large, low, clamped), i32)
        whole = self.select(is_large, constant(i32.maximum, i32, value.lanes), whole)
        return self.select(self.unary("isnan", value), zero, whole)

    def _from_integer(self, value: LaneValue, dtype: DType) -> LaneValue:
        source = value.dtype
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
            low = self.binary("&", value, 0x7FF)
            high = self.binary("-", value, low)
            sticky = self.binary("|", high, 0x800)
            inexact = self.binary("!=", low, 0)
            folded = self.select(inexact, sticky, high)
            large = self.binary(">=", value, 2**53)
            if is_signed:
                small = self.binary("<=", value, -(2**53))
                large = self._plain("or", large, small)
            value = self.select(large, folded, value)
        return self._narrowed(self._cast(instruction, value, f64), dtype)

    def _widened(self, value: LaneValue) -> LaneValue:
        """Convert f16, bf16 or f8 to f32, which is exact."""
        source = value.dtype
        if source is f16:
            return self._cast("fpext", value, f32)
        if source is bf16:
            wide = self._cast("zext", value, i32)
            return self.bitcast(self.binary("<<", wide, 16), f32)
        # f8e5m2 is the upper half of an f16; f8e4m3 has an exponent range of its own.
        bits = self._cast("zext", value, i16)
        if source.exponent_bits == 5:
            return self._widened(self.bitcast(self.binary("<<", bits, 8), f16))
        # With its fields where f16 has them, the exponent's bias is 8 too small: scale by 2**8.
        sign = self.binary("<<", self.binary("&", bits, 0x80), 8)
        magnitude = self.binary("&", bits, 0x7F)
        shifted = self.binary("<<", magnitude, 7)
        half = self._widened(self.bitcast(self.binary("|", sign, shifted), f16))
        scaled = self.binary("*", half, 256.0)
        is_nan = self.binary("==", magnitude, 0x7F)
        return self.select(is_nan, float("nan"), scaled)

    def _narrowed(self, value: LaneValue, dtype: DType) -> LaneValue:
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
            moved = self.binary("+", bits, 0x1000)
            quiet = self.binary("|", bits, 0x400000)
            kept = self.select(is_nan, quiet, moved)
            return self.bitcast(self.binary("&", kept, -0x2000), dtype)
        if dtype is bf16:
            up = self._shift(">>", self.bitcast(bits, u32), constant(16, u32, lanes))
            odd = self.bitcast(self.binary("&", up, 1), i32)
            moved = self.binary("+", self.binary("+", bits, 0x7FFF), odd)
            quiet = self.binary("|", bits, 0x400000)
            return self._upper_half(self.select(is_nan, quiet, moved))
        return self._to_f8(value, dtype)

    def _upper_half(self, value: LaneValue) -> LaneValue:
        """The upper half of 32 bits as bf16."""
        top = self._shift(">>", self.bitcast(value, u32), constant(16, u32, value.lanes))
        return replace(self._cast("trunc", top, i16), dtype=bf16)

    def _to_f8(self, value: LaneValue, dtype: DType) -> LaneValue:
        """Rounds by adding a magic number whose last bit has the weight of the result's last bit."""
        lanes = value.lanes
        largest = constant(dtype.maximum, f32, lanes)
        size = self._intrinsic("minnum", value, self._intrinsic("fabs", value, value), largest)
        bits = self.bitcast(size, i32)
        mantissa = dtype.mantissa_bits
        bias = 2 ** (dtype.exponent_bits - 1) - 1
        # The exponent of the last bit: that of the value, or of the smallest normal number.
        exponent = self.binary(">>", bits, 23)
        exponent = self._intrinsic("smax", exponent, exponent, constant(128 - bias, i32, lanes))
        unit = self.binary("+", exponent, 23 - mantissa)
        magic = self.bitcast(self.binary("<<", unit, 23), f32)
        whole = self.binary("-", self.binary("+", size, magic), magic)
        # Rounded, the value is a small multiple of that unit, so that the f32's bits give the fields.
        scaled = self.bitcast(self.binary("*", whole, 2.0 ** (bias - 127)), i32)
        fields = self.binary(">>", scaled, 23 - mantissa)
        sign = self.binary("&", self.bitcast(value, i32), -(2**31))
        top = self._shift(">>", self.bitcast(sign, u32), constant(24, u32, lanes))
        is_nan = self.unary("isnan", replace(value, dtype=f32))
        fields = self.select(is_nan, 0x7F if mantissa == 3 else 0x7E, fields)
        joined = self.binary("|", fields, self.bitcast(top, i32))
        narrow = self.builder.pure(f"trunc {joined.typed} to {vector_of('i8', lanes)}")
        return LaneValue(narrow, dtype, lanes)
