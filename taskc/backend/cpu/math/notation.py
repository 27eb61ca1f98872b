"""Values with Python's operators, so that formulas read as on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskc.backend.cpu.builder import Value, constant
from taskc.backend.cpu.elementwise import Elementwise
from taskc.ir.types import DType, f32, f64, u32, u64

Number = int | float


@dataclass(frozen=True, slots=True)
class Term:
    """An f32, f64, integer or bool: a scalar, or one for each lane. A number combined with it takes its type."""

    elementwise: Elementwise
    value: Value

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    def of(self, other: Term | Number) -> Term:
        """A constant of the same type, rounded to it."""
        if isinstance(other, Term):
            return other
        rounded = self.dtype.numpy.type(other).item()
        return self._with(constant(rounded, self.dtype, self.value.lanes))

    def _with(self, value: Value) -> Term:
        return Term(self.elementwise, value)

    def _binary(self, operator: str, other: Term | Number) -> Term:
        return self._with(self.elementwise.binary(operator, self.value, self.of(other).value))

    def unary(self, operator: str) -> Term:
        return self._with(self.elementwise.unary(operator, self.value))

    def __add__(self, other: Term | Number) -> Term:
        return self._binary("+", other)

    def __sub__(self, other: Term | Number) -> Term:
        return self._binary("-", other)

    def __mul__(self, other: Term | Number) -> Term:
        return self._binary("*", other)

    def __truediv__(self, other: Term | Number) -> Term:
        return self._binary("/", other)

    def __radd__(self, other: Number) -> Term:
        return self.of(other) + self

    def __rsub__(self, other: Number) -> Term:
        return self.of(other) - self

    def __rmul__(self, other: Number) -> Term:
        return self.of(other) * self

    def __rtruediv__(self, other: Number) -> Term:
        return self.of(other) / self

    def __neg__(self) -> Term:
        return self.unary("-")

    def __abs__(self) -> Term:
        return self.unary("abs")

    def __and__(self, other: Term | Number) -> Term:
        return self._binary("&", other)

    def __or__(self, other: Term | Number) -> Term:
        return self._binary("|", other)

    def __xor__(self, other: Term | Number) -> Term:
        return self._binary("^", other)

    def __lshift__(self, count: Term | int) -> Term:
        return self._binary("<<", count)

    def __rshift__(self, count: Term | int) -> Term:
        return self._binary(">>", count)

    def __lt__(self, other: Term | Number) -> Term:
        return self._binary("<", other)

    def __le__(self, other: Term | Number) -> Term:
        return self._binary("<=", other)

    def __gt__(self, other: Term | Number) -> Term:
        return self._binary(">", other)

    def __ge__(self, other: Term | Number) -> Term:
        return self._binary(">=", other)

    def equals(self, other: Term | Number) -> Term:
        return self._binary("==", other)

    def differs(self, other: Term | Number) -> Term:
        return self._binary("!=", other)

    def fused(self, factor: Term | Number, addend: Term | Number) -> Term:
        """self * factor + addend, rounded once."""
        operands = (self.value, self.of(factor).value, self.of(addend).value)
        return self._with(self.elementwise.fused(*operands))

    def select(self, then: Term | Number, otherwise: Term) -> Term:
        """`then` where this bool holds, `otherwise` elsewhere."""
        chosen = otherwise.of(then).value
        return self._with(self.elementwise.select(self.value, chosen, otherwise.value))

    def clamped(self, low: float | None = None, high: float | None = None) -> Term:
        """Clamp to the range; a NaN stays NaN."""
        result = self
        if low is not None:
            result = (result.of(low) > result).select(low, result)
        if high is not None:
            result = (result.of(high) < result).select(high, result)
        return result

    def times_power(self, power: Term) -> Term | None:
        """self * 2**power, for integer powers, where the processor has an instruction for it."""
        scaled = self.elementwise.scale(self.value, power.value)
        return None if scaled is None else self._with(scaled)

    def divided_by_sum(self, first: Number, second: Term) -> Term:
        """self / (first + second), corrected for the rounding of the sum."""
        divisor = second + first
        left = second - (divisor - first)
        inverse = 1 / divisor
        quotient = self * inverse
        remainder = (-quotient).fused(left, (-quotient).fused(divisor, self))
        return remainder.fused(inverse, quotient)

    def convert(self, dtype: DType) -> Term:
        return self._with(self.elementwise.convert(self.value, dtype))

    def bits(self) -> Term:
        """Reinterpret a float as an unsigned integer."""
        return self.reinterpreted(u32 if self.dtype is f32 else u64)

    def as_float(self) -> Term:
        """Reinterpret bits as the float of their size."""
        return self.reinterpreted(f32 if self.dtype is u32 else f64)

    def reinterpreted(self, dtype: DType) -> Term:
        return self._with(self.elementwise.bitcast(self.value, dtype))

    def sign(self) -> Term:
        """The sign bit; the other bits are 0."""
        return self.bits() & 1 << self.dtype.bits - 1

    def signed_as(self, other: Term) -> Term:
        """This non-negative number with the sign of another."""
        return (self.bits() | other.sign()).as_float()

    def polynomial(self, coefficients: Sequence[Term | Number]) -> Term:
        """A polynomial by Horner's rule; coefficients start with that of the lowest power."""
        *lower, highest = coefficients
        result = self.of(highest)
        for coefficient in reversed(lower):
            result = result.fused(self, coefficient)
        return result
