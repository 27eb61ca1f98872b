"""Arithmetic on a processor's native types: integers, booleans, f32 and f64.

It follows taskc/ir/arithmetic.py, from which LLVM's instructions differ at the edges: division by 0, shifts by
the width or more, signed zeros.
"""

from __future__ import annotations

from dataclasses import replace
from math import copysign, isnan

from taskc.backend.cpu.builder import Value, constant
from taskc.backend.cpu.instructions import Instructions, is_avx512
from taskc.errors import InternalError
from taskc.ir import arithmetic
from taskc.ir.arithmetic import COMPARISONS
from taskc.ir.types import boolean, f32, i32, i64

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
    def binary(self, operator: str, a: Value, b: Value) -> Value:
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
            if operator == "fmod":
                return self._plain("frem", a, b)
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

    def _extreme(self, operator: str, a: Value, b: Value) -> Value:
        if a.dtype is boolean:
            return self._plain("and" if operator == "min" else "or", a, b)
        if a.dtype.is_float and a.number is not None:
            return self._extreme_with_constant(operator, a, b)
        if a.dtype.is_float and b.number is not None:
            return self._extreme_with_constant(operator, b, a)
        if a.dtype.is_float:
            return self._extreme_of_numbers(operator, a, b)
        return self._intrinsic(("s" if a.dtype.kind == "int" else "u") + operator, a, a, b)

    def _extreme_with_constant(self, operator: str, limit: Value, x: Value) -> Value:
        """One instruction, which returns x for equal or NaN operands; adding 0 turns -0 into 0."""
        number = float(limit.number)  # type: ignore[arg-type]
        is_negative = copysign(1, number) < 0
        if isnan(number) or (number == 0 and operator == "min" and is_negative):
            return self._extreme_of_numbers(operator, limit, x)
        compare = "<" if operator == "min" else ">"
        chosen = self.select(self.binary(compare, limit, x), limit, x)
        if number == 0 and operator == "max" and not is_negative:
            return self.binary("+", chosen, constant(0.0, x.dtype, x.lanes))
        return chosen

    def _extreme_of_numbers(self, operator: str, a: Value, b: Value) -> Value:
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

    def _division(self, operator: str, a: Value, b: Value) -> Value:
        """Python's division, rounded down; a divisor of 0 gives 0."""
        dtype, lanes = a.dtype, a.lanes
        zero = constant(0, dtype, lanes)
        is_signed = dtype.kind == "int"
        if b.number is None:
            # The processor traps on division by 0, and of the minimum by -1.
            by_zero = self.binary("==", b, zero)
            safe = self.select(by_zero, constant(1, dtype, lanes), b)
            if is_signed:
                minus = self.binary("==", b, constant(-1, dtype, lanes))
                safe = self.select(minus, constant(1, dtype, lanes), safe)
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
        """Shift by an unsigned count; a count of the width or more shifts everything out."""
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
            return self.select(self.binary("<", a, constant(0, dtype, lanes)), negative, a)
        if operator == "isnan":
            return Value(self.builder.pure(f"fcmp uno {a.typed}, {a.text}"), boolean, lanes)
        if operator == "-":
            return replace(a, text=self.builder.pure(f"fneg {a.typed}"), number=None)
        if operator == "abs":
            return self._intrinsic("fabs", a, a)
        if operator in _ROUNDINGS:
            return self._intrinsic(_ROUNDINGS[operator], a, a)
        raise InternalError(f"no code for {operator!r} on {dtype}")

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        if a.dtype.is_integer:
            return self.binary("+", self.binary("*", a, b), c)
        return self._intrinsic("fma", a, a, b, c)
