"""Scalar operations on values, the same on one scalar or on all lanes; see taskc/ir/arithmetic.py."""

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
from taskc.errors import InternalError
from taskc.ir import arithmetic
from taskc.ir.arithmetic import COMPARISONS, MATH_FUNCTIONS
from taskc.ir.types import DType, bf16, boolean, f16, f32, f64, i16, i32, i64, u32

_SIGNED = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}
_UNSIGNED = {"<": "ult", "<=": "ule", ">": "ugt", ">=": "uge", "==": "eq", "!=": "ne"}
# A comparison with NaN is false, but for !=.
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
_FOLDED = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
# The last operands of some instructions of AVX-512: what masked lanes have, the mask, no rounding of its own.
_ALL_LANES = (constant(0.0, f32, 16), constant(-1, i16), constant(4, i32))


class Elementwise:
    """Operands of one operation have the same number of lanes."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

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

    def offset(self, base: Value, offsets: tuple[int, ...]) -> Value:
        """base + offsets[lane]."""
        vector = self.splat(base, len(offsets))
        return self.binary("+", vector, constants(offsets, base.dtype)) if any(offsets) else vector

    def any(self, mask: Value) -> Value:
        """Whether a mask holds on any lane."""
        if not mask.lanes:
            return mask
        bits = self.builder.pure(f"bitcast {mask.typed} to i{mask.lanes}")
        return Value(self.builder.pure(f"icmp ne i{mask.lanes} {bits}, 0"), boolean)

    def first(self, value: Value, mask: Value) -> Value:
        """The value of the first lane on which a mask holds; where it holds nowhere, of any."""
        bits = self.builder.pure(f"bitcast {mask.typed} to i{mask.lanes}")
        kind = f"i{mask.lanes}"
        self.builder.declare(kind, f"llvm.cttz.{kind}", kind, "i1")
        lane = self.builder.pure(f"call {kind} @llvm.cttz.{kind}({kind} {bits}, i1 true)")
        text = self.builder.pure(f"extractelement {value.typed}, {kind} {lane}")
        return Value(text, value.dtype)

    # Operations.

    def binary(self, operator: str, a: Value, b: Value) -> Value:
        if a.lanes != b.lanes:
            raise InternalError(f"{a.typed} {operator} {b.typed}: not of as many lanes")
        if not a.lanes and a.number is not None and b.number is not None:
            return self._folded(operator, a, b)
        dtype, lanes = a.dtype, a.lanes
        if dtype in (f16, bf16) and operator not in MATH_FUNCTIONS:
            result = self.binary(operator, self.convert(a, f32), self.convert(b, f32))
            return result if operator in COMPARISONS else self.convert(result, dtype)
        if operator in COMPARISONS:
            if dtype.is_float:
                text = f"fcmp {_FLOAT[operator]}"
            else:
                text = f"icmp {(_SIGNED if dtype.kind == 'int' else _UNSIGNED)[operator]}"
            return Value(self.builder.pure(f"{text} {a.typed}, {b.text}"), boolean, lanes)
        if operator in ("and", "or"):
            return self._plain(operator, a, b)
        if operator in ("min", "max"):
            return self._extreme(operator, a, b)
        if dtype.is_float:
            if operator in _FLOAT_PLAIN:
                return self._plain(_FLOAT_PLAIN[operator], a, b)
            if operator in ("//", "%"):
                return self._float_division(operator, a, b)
            raise InternalError(f"no code for {operator!r} on {dtype}")
        if operator in ("//", "%"):
            return self._division(operator, a, b)
        if operator in ("<<", ">>"):
            return self._shift(operator, a, b)
        simple = self._identity(operator, a, b)
        return simple if simple is not None else self._plain(_PLAIN[operator], a, b)

    def _folded(self, operator: str, a: Value, b: Value) -> Value:
        if a.dtype is i64 and operator in _FOLDED:
            return constant(_FOLDED[operator](a.number, b.number), i64)
        assert a.number is not None
        assert b.number is not None
        result = arithmetic.binary(operator, a.number, b.number, a.dtype).item()
        return constant(result, boolean if operator in COMPARISONS else a.dtype)

    def _identity(self, operator: str, a: Value, b: Value) -> Value | None:
        """x + 0, x * 1 and the like, of integers."""
        if operator in "+-" and b.number == 0:
            return a
        if operator == "+" and a.number == 0:
            return b
        if operator == "*" and b.number == 1:
            return a
        if operator == "*" and a.number == 1:
            return b
        return None

    def _plain(self, instruction: str, a: Value, b: Value) -> Value:
        return replace(a, text=self.builder.pure(f"{instruction} {a.typed}, {b.text}"), number=None)

    def _intrinsic(self, name: str, result: Value, *operands: Value) -> Value:
        """A function of LLVM that is overloaded on the type of its result."""
        suffix = suffix_of(result.dtype, result.lanes)
        types = [operand.type for operand in operands]
        function = f"llvm.{name}.{suffix}"
        self.builder.declare(result.type, function, *types)
        listed = ", ".join(operand.typed for operand in operands)
        text = self.builder.pure(f"call {result.type} @{function}({listed})")
        return Value(text, result.dtype, result.lanes)

    def less(self, a: Value, b: Value) -> Value:
        """a - b, or the smallest number where that is smaller still."""
        return self._intrinsic("ssub.sat", a, a, b)

    def scale(self, value: Value, power: Value) -> Value | None:
        """value * 2**power, rounded once, for whole powers; None where no instruction does it."""
        if not _is_avx512(value):
            return None
        return self._avx512("mask.scalef.ps.512", f32, value, power, *_ALL_LANES)

    def pick(self, numbers: Sequence[float], index: Value) -> Value | None:
        """numbers[index % 32], of 32 f32; None where no instruction does it."""
        if not _is_avx512(replace(index, dtype=f32)):
            return None
        low, high = constants(numbers[:16], f32), constants(numbers[16:], f32)
        return self._avx512("vpermi2var.ps.512", f32, low, index, high)

    def _avx512(self, name: str, dtype: DType, *operands: Value) -> Value:
        """An instruction with 16 numbers of a type as its result, for every 16 of the operands' lanes."""
        lanes = max(operand.lanes for operand in operands)
        function, kind = f"llvm.x86.avx512.{name}", type_of(dtype, 16)
        types = [replace(o, lanes=min(o.lanes, 16)).type for o in operands]
        self.builder.declare(kind, function, *types)
        parts = []
        for first in range(0, lanes, 16):
            listed = [self._sixteen(o, first) if o.lanes == lanes else o for o in operands]
            text = ", ".join(operand.typed for operand in listed)
            parts.append(Value(self.builder.pure(f"call {kind} @{function}({text})"), dtype, 16))
        while len(parts) > 1:
            parts = [self._joined(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _sixteen(self, value: Value, first: int) -> Value:
        """Sixteen of a vector's lanes."""
        if value.lanes == 16:
            return value
        if value.number is not None:
            return constant(value.number, value.dtype, 16)
        picks = ", ".join(f"i32 {lane}" for lane in range(first, first + 16))
        text = self.builder.pure(
            f"shufflevector {value.typed}, {value.type} poison, <16 x i32> <{picks}>"
        )
        return Value(text, value.dtype, 16)

    def _joined(self, a: Value, b: Value) -> Value:
        lanes = a.lanes + b.lanes
        picks = ", ".join(f"i32 {lane}" for lane in range(lanes))
        text = self.builder.pure(f"shufflevector {a.typed}, {b.typed}, <{lanes} x i32> <{picks}>")
        return Value(text, a.dtype, lanes)

    def _extreme(self, operator: str, a: Value, b: Value) -> Value:
        if a.dtype is boolean:
            return self._plain("and" if operator == "min" else "or", a, b)
        if a.dtype.is_float and a.dtype.bits * a.lanes >= 512:
            return self._extreme_of_numbers(operator, a, b)
        if a.dtype.is_float:
            return self._intrinsic("minimum" if operator == "min" else "maximum", a, a, b)
        return self._intrinsic(("s" if a.dtype.kind == "int" else "u") + operator, a, a, b)

    def _extreme_of_numbers(self, operator: str, a: Value, b: Value) -> Value:
        """The processor's instruction has its second operand where they are equal or one is NaN.

        So both orders differ in a zero's sign or are a number and NaN: every bit but the sign of a maximum is
        that of either, which leaves a NaN one; the maximum's sign is that of both.
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
        if a.dtype is f32:  # for which LLVM needs two
            chosen = self._avx512("pternlog.d.512", i32, x, y, sign, constant(0b11010100, i32))
        else:
            differ = self.binary("&", self.binary("^", x, y), sign)
            chosen = self.binary("^", either, differ)
        return self.bitcast(chosen, a.dtype)

    def _division(self, operator: str, a: Value, b: Value) -> Value:
        """As Python's: rounded down; 0 for a divisor of 0."""
        dtype, lanes = a.dtype, a.lanes
        zero = constant(0, dtype, lanes)
        is_signed = dtype.kind == "int"
        if b.number is None:
            # The processor traps on 0, and on the smallest number by -1.
            by_zero = self.binary("==", b, zero)
            safe = self.select(by_zero, constant(1, dtype, lanes), b)
            if is_signed:
                minus = self.binary("==", b, constant(-1, dtype, lanes))
                safe = self.select(minus, constant(1, dtype, lanes), safe)
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
                lower = self.binary("-", quotient, constant(1, dtype, lanes))
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

    def _shift(self, operator: str, a: Value, b: Value) -> Value:
        """Counts are unsigned, and the largest ones shift everything out."""
        dtype, lanes = a.dtype, a.lanes
        instruction = "shl" if operator == "<<" else "ashr" if dtype.kind == "int" else "lshr"
        if b.number is not None and 0 <= b.number < dtype.bits:
            return self._plain(instruction, a, b)
        largest = constant(dtype.bits - 1, dtype, lanes)
        fits = Value(self.builder.pure(f"icmp ule {b.typed}, {largest.text}"), boolean, lanes)
        shifted = self._plain(instruction, a, self.select(fits, b, largest))
        if instruction == "ashr":
            return shifted
        return self.select(fits, shifted, constant(0, dtype, lanes))

    def _float_division(self, operator: str, a: Value, b: Value) -> Value:
        """As Python's, with NumPy's results for zeros and infinities."""
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
        too_low = self.binary(">", self.binary("-", quotient, lower), constant(0.5, dtype, lanes))
        whole = self.select(too_low, self.binary("+", lower, one), lower)
        ratio = self.binary("/", a, b)
        signed_zero = self._intrinsic("copysign", a, zero, ratio)
        whole = self.select(self.binary("==", quotient, zero), signed_zero, whole)
        return self.select(self.binary("==", b, zero), ratio, whole)

    def unary(self, operator: str, a: Value) -> Value:
        dtype, lanes = a.dtype, a.lanes
        if a.number is not None and not lanes:
            result = arithmetic.unary(operator, a.number, dtype).item()
            return constant(result, boolean if operator in ("isnan", "not") else dtype)
        if operator == "not":
            return self._plain("xor", a, constant(True, boolean, lanes))
        if operator == "~":
            return self._plain("xor", a, constant(-1, dtype, lanes))
        if dtype.is_integer:
            negative = self._plain("sub", constant(0, dtype, lanes), a)
            if operator == "-":
                return negative
            if dtype.kind == "uint":
                return a
            return self.select(self.binary("<", a, constant(0, dtype, lanes)), negative, a)
        if dtype in (f16, bf16) and operator != "isnan":
            return self.convert(self.unary(operator, self.convert(a, f32)), dtype)
        if operator == "isnan":
            wide = self.convert(a, f32) if dtype in (f16, bf16) else a
            return Value(self.builder.pure(f"fcmp uno {wide.typed}, {wide.text}"), boolean, lanes)
        if operator == "-":
            return replace(a, text=self.builder.pure(f"fneg {a.typed}"), number=None)
        if operator == "abs":
            return self._intrinsic("fabs", a, a)
        if operator in _ROUNDINGS:
            return self._intrinsic(_ROUNDINGS[operator], a, a)
        raise InternalError(f"no code for {operator!r} on {dtype}")

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        dtype = a.dtype
        if dtype.is_integer:
            return self.binary("+", self.binary("*", a, b), c)
        if dtype in (f32, f64):
            return self._intrinsic("fma", a, a, b, c)
        # Exact products in f64; the sum is rounded to odd, so that the next rounding is the only one.
        x, y, z = (self.convert(value, f64) for value in (a, b, c))
        product = self.binary("*", x, y)
        total = self.binary("+", product, z)
        of_z = self.binary("-", total, product)
        error = self.binary(
            "+",
            self.binary("-", product, self.binary("-", total, of_z)),
            self.binary("-", z, of_z),
        )
        return self.convert(self._to_odd(total, error), dtype)

    def _to_odd(self, nearest: Value, error: Value) -> Value:
        """nearest + error rounded to odd, where `nearest` is that sum rounded to nearest."""
        integer = i64 if nearest.dtype is f64 else i32
        lanes = nearest.lanes
        zero, one = constant(0, integer, lanes), constant(1, integer, lanes)
        bits = self.bitcast(nearest, integer)
        sign = self.bitcast(error, integer)
        size = self._intrinsic("fabs", error, error)
        inexact = self.binary(">", size, constant(0.0, nearest.dtype, lanes))
        even = self.binary("==", self.binary("&", bits, one), zero)
        same = self.binary(">=", self.binary("^", bits, sign), zero)
        step = self.select(same, one, constant(-1, integer, lanes))
        moved = self.binary("+", bits, step)
        wrong = self._plain("and", inexact, even)
        return self.bitcast(self.select(wrong, moved, bits), nearest.dtype)

    def select(self, condition: Value, then: Value, otherwise: Value) -> Value:
        if condition.number is not None:
            return then if condition.number else otherwise
        if then.text == otherwise.text:
            return then
        text = self.builder.pure(f"select {condition.typed}, {then.typed}, {otherwise.typed}")
        return replace(then, text=text, number=None)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        """The same bits as another type of the same size."""
        if type_of(value.dtype) == type_of(dtype):
            return replace(value, dtype=dtype)
        into = type_of(dtype, value.lanes)
        return Value(self.builder.pure(f"bitcast {value.typed} to {into}"), dtype, value.lanes)

    # Conversions.

    def convert(self, value: Value, dtype: DType) -> Value:
        source, lanes = value.dtype, value.lanes
        if source is dtype:
            return value
        if value.number is not None and not lanes:
            array = arithmetic.convert(arithmetic.as_storage(value.number, source), source, dtype)
            return constant(array.item(), dtype)
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
        kind = "fptosi" if dtype.kind == "int" else "fptoui"
        result = Value("", dtype, lanes)
        function = f"llvm.{kind}.sat.{suffix_of(dtype, lanes)}.{suffix_of(source, lanes)}"
        self.builder.declare(result.type, function, value.type)
        return replace(
            result, text=self.builder.pure(f"call {result.type} @{function}({value.typed})")
        )

    def _cast(self, instruction: str, value: Value, dtype: DType) -> Value:
        into = type_of(dtype, value.lanes)
        if type_of(value.dtype, value.lanes) == into:
            return replace(value, dtype=dtype)
        return Value(
            self.builder.pure(f"{instruction} {value.typed} to {into}"), dtype, value.lanes
        )

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
        """f16, bf16 and f8 as f32, exactly."""
        source, lanes = value.dtype, value.lanes
        if source is f16:
            return self._cast("fpext", value, f32)
        if source is bf16:
            wide = Value(
                self.builder.pure(f"zext {value.typed} to {type_of(i32, lanes)}"), i32, lanes
            )
            return self.bitcast(self.binary("<<", wide, constant(16, i32, lanes)), f32)
        # f8e5m2 is the upper half of an f16; f8e4m3 has an exponent range of its own.
        bits = Value(self.builder.pure(f"zext {value.typed} to {type_of(i16, lanes)}"), i16, lanes)
        if source.exponent_bits == 5:
            return self._widened(
                self.bitcast(self.binary("<<", bits, constant(8, i16, lanes)), f16)
            )
        # Shifted to where f16 has its fields, the exponent's bias is 8 too small: scale by 2**8.
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
        """An f32 or f64 rounded once to a float type."""
        source, lanes = value.dtype, value.lanes
        if dtype is f64:
            return self._cast("fpext", value, f64)
        if source is f64:
            nearest = self._cast("fptrunc", value, f32)
            if dtype is f32:
                return nearest
            back = self._cast("fpext", nearest, f64)
            error = self._cast("fptrunc", self.binary("-", value, back), f32)
            value = self._to_odd(nearest, error)
        if dtype is f16:
            return self._cast("fptrunc", value, f16)
        if dtype is f32:
            return replace(value, dtype=f32)
        bits = self.bitcast(value, i32)
        is_nan = self.unary("isnan", replace(value, dtype=f32))
        if dtype.name == "tf32":
            moved = self.binary("+", bits, constant(0x1000, i32, lanes))
            quiet = self.binary("|", bits, constant(0x400000, i32, lanes))
            kept = self.select(is_nan, quiet, moved)
            return self.bitcast(self.binary("&", kept, constant(-0x2000, i32, lanes)), dtype)
        if dtype is bf16:
            up = self._shift(">>", self.bitcast(bits, u32), constant(16, u32, lanes))
            odd = self.bitcast(self.binary("&", up, constant(1, u32, lanes)), i32)
            moved = self.binary("+", self.binary("+", bits, constant(0x7FFF, i32, lanes)), odd)
            quiet = self.binary("|", bits, constant(0x400000, i32, lanes))
            kept = self.bitcast(self.select(is_nan, quiet, moved), u32)
            top = self._shift(">>", kept, constant(16, u32, lanes))
            return replace(self._cast("trunc", top, i16), dtype=bf16)
        return self._to_f8(value, dtype)

    def _to_f8(self, value: Value, dtype: DType) -> Value:
        """Rounded by adding a magic number: its last bit is worth the result's last bit."""
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
        # Rounded, it is a small multiple of that unit: fields follow from the bits of the f32.
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


def _is_avx512(value: Value) -> bool:
    """Only AVX-512 has vectors of 16 numbers of 32 bits, or of several times 16."""
    return value.dtype is f32 and value.lanes >= 16


def suffix_of(dtype: DType, lanes: int) -> str:
    """How LLVM's overloaded names spell a type."""
    plain = {"f16": "f16", "f32": "f32", "f64": "f64", "tf32": "f32", "bool": "i1"}
    name = plain.get(dtype.name) or f"i{dtype.bits}"
    return f"v{lanes}{name}" if lanes != SCALAR else name
