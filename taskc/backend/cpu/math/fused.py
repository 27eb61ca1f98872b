"""Fused multiply-adds, rounded once, for x86 processors without an instruction for them.

LLVM calls the C library there, at 100 to 200 ns for each number. f32 is computed in f64. For f64, the product is
split into two numbers (Dekker), and the sum of three is rounded once (Boldo and Melquiond,
"Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd").
"""

from __future__ import annotations

import re

from taskc.backend.cpu.builder import SCALAR, Builder, Value, type_of
from taskc.backend.cpu.elementwise import Elementwise
from taskc.backend.cpu.instructions import suffix_of
from taskc.backend.cpu.math.notation import Term
from taskc.backend.cpu.math.rare import Terms, where_rare
from taskc.ir.types import DType, f32, f64

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
    a, b, c = (Value(f"%{name}", dtype, lanes) for name in "abc")
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
