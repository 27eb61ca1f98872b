"""Values with Python's operators, so that formulas read as on paper; and what formulas use.

`where_rare` is code for rare operands: a function that is called if any lane needs it. `lookup` reads tables.

`in_parts` is for x86 processors without an instruction for fused multiply-adds, rounded once. LLVM calls the C library
there, at 100 to 200 ns for each number. f32 is computed in f64. For f64, the product is split into two numbers
(Dekker), and the sum of three is rounded once (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums:
proved algorithms using rounding to odd").

The tables are lines of tables.jsonl; benchmarks/polynomials.py documents how each number was found.

Polynomials begin with their lowest power.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files

from taskc.backend.cpu.instructions import (
    SCALAR,
    Builder,
    LaneValue,
    constant,
    suffix_of,
    type_of,
    vector_of,
)
from taskc.backend.cpu.native import Elementwise
from taskc.dataclass import dataclass
from taskc.ir.types import DType, f32, f64, u32, u64

Number = int | float


def _operator(symbol: str) -> Callable[[Term, Term | Number], Term]:
    return lambda self, other: self._binary(symbol, other)


def _reflected(symbol: str) -> Callable[[Term, Number], Term]:
    """A method of the right operand, where the left one is a number."""
    return lambda self, other: self.of(other)._binary(symbol, self)


@dataclass(frozen=True, slots=True)
class Term:
    """An f32, f64, integer or bool: a scalar, or one for each lane. A number combined with it takes its type."""

    elementwise: Elementwise
    value: LaneValue

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    def of(self, other: Term | Number) -> Term:
        """A constant of the same type, rounded to it."""
        if isinstance(other, Term):
            return other
        rounded = self.dtype.numpy.type(other).item()
        return self._with(constant(rounded, self.dtype, self.value.lanes))

    def _with(self, value: LaneValue) -> Term:
        return Term(self.elementwise, value)

    def _binary(self, operator: str, other: Term | Number) -> Term:
        return self._with(self.elementwise.binary(operator, self.value, self.of(other).value))

    def unary(self, operator: str) -> Term:
        return self._with(self.elementwise.unary(operator, self.value))

    __add__, __radd__ = _operator("+"), _reflected("+")
    __sub__, __rsub__ = _operator("-"), _reflected("-")
    __mul__, __rmul__ = _operator("*"), _reflected("*")
    __truediv__, __rtruediv__ = _operator("/"), _reflected("/")
    __and__, __or__, __xor__ = _operator("&"), _operator("|"), _operator("^")
    __lshift__, __rshift__ = _operator("<<"), _operator(">>")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("<", "<=", ">", ">="))
    equals, differs = _operator("=="), _operator("!=")

    def __neg__(self) -> Term:
        return self.unary("-")

    def __abs__(self) -> Term:
        return self.unary("abs")

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


Terms = tuple[Term, ...]


def where_rare(
    condition: Term, name: str, compute: Callable[..., Terms], operands: Terms, usual: Terms
) -> Terms:
    """`compute` of the operands where a condition holds, `usual` elsewhere.

    The function is written once a module, under a name: inlined, it would be most of an unrolled loop.
    Operands pass through memory.
    """
    elementwise, x = operands[0].elementwise, operands[0]
    builder = elementwise.builder
    function = f"{name}.{x.dtype}.{x.value.lanes}"
    if function not in builder.declared:
        builder.declared[function] = _definition(function, compute, operands, builder)
    start, rare, end = builder.block, builder.label("rare"), builder.label("end")
    builder.branch(elementwise.any(condition.value), rare, end)
    builder.start(rare)
    places = [builder.allocate(term.value.type, "rare") for term in (*operands, *usual)]
    for term, place in zip(operands, places, strict=False):
        builder.emit(f"store {term.value.typed}, ptr {place}")
    builder.emit(f"call void @{function}({', '.join(f'ptr {place}' for place in places)})")
    with builder.nested():
        chosen = []
        for term, place in zip(usual, places[len(operands) :], strict=True):
            result = builder.impure(f"load {term.value.type}, ptr {place}")
            chosen.append(
                condition.select(
                    replace(term, value=replace(term.value, text=result, number=None)), term
                )
            )
    builder.jump(end)
    builder.start(end)
    joined = []
    for term, other in zip(usual, chosen, strict=True):
        ways = f"[ {term.value.text}, %{start} ], [ {other.value.text}, %{rare} ]"
        text = builder.impure(f"phi {term.value.type} {ways}")
        joined.append(replace(term, value=replace(term.value, text=text, number=None)))
    return tuple(joined)


def _definition(
    function: str, compute: Callable[..., Terms], operands: Terms, around: Builder
) -> str:
    builder = Builder(declared=around.declared)
    loaded = [
        builder.impure(f"load {term.value.type}, ptr %x{number}")
        for number, term in enumerate(operands)
    ]
    results = compute(
        *(
            Term(Elementwise(builder), replace(term.value, text=text, number=None))
            for term, text in zip(operands, loaded, strict=True)
        )
    )
    for number, result in enumerate(results):
        builder.emit(f"store {result.value.typed}, ptr %r{number}")
    places = [f"ptr noalias %x{number}" for number in range(len(operands))]
    places += [f"ptr noalias %r{number}" for number in range(len(results))]
    return "\n".join(
        [
            f"define internal void @{function}({', '.join(places)}) noinline cold nounwind {{",
            *builder.lines,
            "  ret void",
            "}",
        ]
    )


def lookup(name: str, numbers: Sequence[Number], dtype: DType, index: Term) -> Term:
    """numbers[index], from a table named `name`."""
    builder, lanes, element = index.elementwise.builder, index.value.lanes, type_of(dtype)
    listed = ", ".join(constant(number, dtype).typed for number in numbers)
    table = f"@{name} = private constant [{len(numbers)} x {element}] [{listed}]"
    builder.declared.setdefault(name, table)
    address = builder.pure(f"getelementptr {element}, ptr @{name}, {index.value.typed}")
    if not lanes:
        text = builder.pure(f"load {element}, ptr {address}")
        return Term(index.elementwise, LaneValue(text, dtype))
    kind, pointers, mask = (vector_of(each, lanes) for each in (element, "ptr", "i1"))
    function = f"llvm.masked.gather.v{lanes}{suffix_of(dtype, SCALAR)}.v{lanes}p0"
    builder.declare(kind, function, pointers, mask, kind)
    operands = f"{pointers} align {dtype.nbytes} {address}, {mask} splat (i1 true), {kind} poison"
    text = builder.pure(f"call {kind} @{function}({operands})")
    return Term(index.elementwise, LaneValue(text, dtype, lanes))


def lookup_of_32(name: str, numbers: Sequence[float], index: Term) -> Term:
    """numbers[index % 32] of 32 f32; from registers where the processor has an instruction for it."""
    picked = index.elementwise.pick(numbers, index.value)
    if picked is None:
        return lookup(name, numbers, f32, index & 31)
    return Term(index.elementwise, picked)


_INTRINSIC = re.compile(r"@llvm\.fma\.(?:v(\d+))?f(32|64)\b")
_SPLITTER = 2.0**27 + 1
_SMALL = 2.0**-480  # products of numbers at least this large have no subnormal part


def in_parts(text: str) -> str:
    """Replace `llvm.fma` in a module's text by functions defined in it."""
    kinds = {match.groups() for match in _INTRINSIC.finditer(text)}
    declared: dict[str, str] = {}
    functions = [
        _function(f32 if bits == "32" else f64, int(lanes or SCALAR), declared)
        for lanes, bits in sorted(kinds, key=str)
    ]
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith("declare") or not _INTRINSIC.search(line)
    ]
    known = {line for line in lines if line.startswith("declare")}
    called = _INTRINSIC.sub(lambda match: match[0].replace("llvm.", "taskc."), "\n".join(lines))
    return "\n".join(
        [called, *(line for line in declared.values() if line not in known), *functions, ""]
    )


def _function(dtype: DType, lanes: int, declared: dict[str, str]) -> str:
    builder = Builder(declared=declared)
    elementwise, kind = Elementwise(builder), type_of(dtype, lanes)
    a, b, c = (LaneValue(f"%{name}", dtype, lanes) for name in "abc")
    if dtype is f32:
        result = elementwise.fused_in_f64(a, b, c)
    else:
        result = _fused(*(Term(elementwise, value) for value in (a, b, c))).value
    return "\n".join(
        [
            f"define internal {kind} @taskc.fma.{suffix_of(dtype, lanes)}({kind} %a, {kind} %b, {kind} %c) #1 {{",
            "entry:",
            *builder.allocations,
            *builder.lines,
            f"  ret {result.typed}",
            "}",
        ]
    )


def _fused(a: Term, b: Term, c: Term) -> Term:
    """Errors are computed negated, so that zero errors keep the sign of a sum of zeros."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = product - a_high * b_high - a_low * b_high - a_high * b_low - a_low * b_low
    low, low_error = _difference(c, error)
    high, high_error = _difference(low, -product)
    remainder, remainder_error = _difference(low_error, -high_error)
    elementwise = a.elementwise
    remainder = Term(elementwise, elementwise.to_odd(remainder.value, (-remainder_error).value))
    usual = high - remainder
    is_rare = _is_small(a) | _is_small(b) | _is_not_finite(usual)
    (result,) = where_rare(is_rare, "fused_if_rare", _of_library, (a, b, c), (usual,))
    return result


def _halves(x: Term) -> tuple[Term, Term]:
    """Split a number into two of 26 bits."""
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def _difference(x: Term, y: Term) -> tuple[Term, Term]:
    """x - y, and its error: the exact difference is the first less the second."""
    difference = x - y
    of_y = difference - x
    return difference, (of_y + y) - (x - (difference - of_y))


def _is_small(x: Term) -> Term:
    return (abs(x) < _SMALL) & x.differs(0)


def _is_not_finite(x: Term) -> Term:
    """Whether an intermediate result overflowed, seen from an infinite or invalid result."""
    difference = x - x
    return difference.differs(difference)


def _of_library(a: Term, b: Term, c: Term) -> Terms:
    return (a.fused(b, c),)


Table = dict[DType, tuple[float, ...]]

_lines = (files("taskc.backend.cpu.math") / "tables.jsonl").read_text(encoding="utf-8").splitlines()
_rows = {row["name"]: row for row in map(json.loads, _lines)}


def _table(name: str) -> Table:
    row = _rows[name]
    return {dtype: tuple(row[dtype.name]) for dtype in (f32, f64) if dtype.name in row}


EXP, EXP2 = _table("EXP"), _table("EXP2")
LOG, LOG_EXTENDED = _table("LOG"), _table("LOG_EXTENDED")
SIN, COS, TAN = _table("SIN"), _table("COS"), _table("TAN")
ASIN, ATAN = _table("ASIN"), _table("ATAN")
ERF = _table("ERF")
TAIL, TAIL_CENTER, TAIL_END = _table("TAIL"), _table("TAIL_CENTER"), _table("TAIL_END")
LN2, LOG2_E, TWO_THIRDS = _table("LN2"), _table("LOG2_E"), _table("TWO_THIRDS")
HALF_PI, TWO_OVER_PI = _table("HALF_PI"), _table("TWO_OVER_PI")
LOST: tuple[tuple[float, ...], ...] = tuple([tuple(row) for row in _rows["LOST"]["rows"]])
LOST_WIDTH: float = _rows["LOST"]["width"]
TWO_OVER_PI_WORDS = tuple([int(word, 16) for word in _rows["TWO_OVER_PI_WORDS"]["words"]])
