"""The meaning of every scalar operation, on single numbers, written down independently.

Integers are Python's, wrapped to their type; floats are NumPy scalars of their type, rounded once. What
NumPy does not round once (fma, and everything that leads to bf16 but its own arithmetic) goes through
exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

FLOATS: dict[str, type] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
INTEGERS: dict[str, tuple[int, bool]] = {
    "i8": (8, True), "i16": (16, True), "i32": (32, True), "i64": (64, True),
    "u8": (8, False), "u16": (16, False), "u32": (32, False), "u64": (64, False),
}  # fmt: skip
SIGNED = ("i8", "i16", "i32", "i64")
# Significant bits, and the exponent of the least subnormal.
_FORMATS = {"f16": (11, -24), "bf16": (8, -133), "f32": (24, -149), "f64": (53, -1074)}
STORAGE: dict[str, Any] = {
    **FLOATS,
    "bool": np.bool_,
    **{
        name: np.dtype(f"{'i' if signed else 'u'}{bits // 8}").type
        for name, (bits, signed) in INTEGERS.items()
    },
}


def wrap(value: int, dtype: str) -> int:
    bits, signed = INTEGERS[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def rounded(value: Fraction, dtype: str, zero: float = 0.0) -> Any:
    """The nearest float, ties to even; `zero` is what an exact zero becomes."""
    make = FLOATS[dtype]
    if value == 0:
        return make(zero)
    precision, least = _FORMATS[dtype]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = max(exponent - precision + 1, least)
    steps = round(magnitude / Fraction(2) ** unit)  # Python rounds ties to even
    sign = -1.0 if value < 0 else 1.0
    try:
        result = math.ldexp(float(steps), unit)  # exact: at most 53 bits
    except OverflowError:
        result = math.inf
    return make(sign * result)


def narrowed(value: float, dtype: str) -> Any:
    """A number of f64, rounded once."""
    if dtype != "bf16":
        return FLOATS[dtype](value)
    single = np.float32(value)
    if float(single) == value:  # or two roundings could differ from one
        return ml_dtypes.bfloat16(single)
    return rounded(Fraction(value), dtype, value)


def fma(a: Any, b: Any, c: Any, dtype: str) -> Any:
    x, y, z = float(a), float(b), float(c)
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return FLOATS[dtype](x * y + z)
    if dtype != "f64":
        product = x * y  # exact, but for the least of bf16: at most 48 bits
        total = product + z
        part = total - product
        if (product - (total - part)) + (z - part) == 0.0 and abs(product) > 1e-200:
            return narrowed(total, dtype)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    zero = 0.0
    if exact == 0 and math.copysign(1.0, x) * math.copysign(1.0, y) < 0 and _is_minus(z):
        zero = -0.0 if x * y == 0 and z == 0 else 0.0
    return rounded(exact, dtype, zero)


def _is_minus(x: float) -> bool:
    return math.copysign(1.0, x) < 0


def _least(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return a if a != a else b
    if a == b:
        return a if _is_minus(float(a)) else b
    return a if a < b else b


def _greatest(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return a if a != a else b
    if a == b:
        return b if _is_minus(float(a)) else a
    return a if a > b else b


# On the bits of a number as digits, the highest first.
_BIT_OPERATORS: dict[str, Callable[[str], int]] = {
    "popcount": lambda digits: digits.count("1"),
    "leading_zeros": lambda digits: len(digits) - len(digits.lstrip("0")),
    "trailing_zeros": lambda digits: len(digits) - len(digits.rstrip("0")),
    "reverse_bits": lambda digits: int(digits[::-1], 2),
}
_FLOAT_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "min": _least,
    "max": _greatest,
    "neg": lambda a: -a,
    "abs": abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sqrt": np.sqrt,
    "isnan": lambda a: bool(a != a),
}
_INTEGER_OPERATORS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "neg": lambda a: -a,
    "abs": abs,
    "invert": lambda a: ~a,
}
_BOOLEAN_OPERATORS: dict[str, Callable[..., bool]] = {
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "min": lambda a, b: a and b,
    "max": lambda a, b: a or b,
    "not": lambda a: not a,
}
# Numbers without a type are Python's.
_PYTHON_OPERATORS: dict[str, Callable[..., Any]] = {
    **{
        name: _INTEGER_OPERATORS[name]
        for name in ("+", "-", "*", "//", "%", "min", "max", "neg", "abs")
    },
    "/": lambda a, b: a / b,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def function(operator: str, dtype: str) -> Callable[..., Any]:
    """What an operator does on operands of a type."""
    if operator in COMPARISONS:
        compare = COMPARISONS[operator]
        return lambda a, b: bool(compare(a, b))
    if dtype == "number":
        return _PYTHON_OPERATORS[operator]
    if dtype in FLOATS:
        on_floats, make = _FLOAT_OPERATORS[operator], FLOATS[dtype]
        if operator == "isnan":
            return on_floats
        if operator in ("+", "-", "*", "/", "min", "max", "neg", "abs") and dtype != "bf16":
            return on_floats
        return lambda *operands: make(on_floats(*operands))
    if dtype == "bool":
        return _BOOLEAN_OPERATORS[operator]
    if operator in _BIT_OPERATORS:
        bits, of_bits = INTEGERS[dtype][0], _BIT_OPERATORS[operator]
        return lambda a: wrap(of_bits(f"{a % 2**bits:0{bits}b}"), dtype)
    on_integers = _INTEGER_OPERATORS[operator]
    return lambda *operands: wrap(on_integers(*operands), dtype)


def cast(value: Any, source: str, target: str) -> Any:
    if target == "bool":
        return bool(value != 0)
    if target in INTEGERS:
        return wrap(int(value), target)
    if source in INTEGERS or source == "bool":
        whole = int(value)
        return (
            narrowed(float(whole), target)
            if abs(whole) < 1 << 53
            else rounded(Fraction(whole), target)
        )
    number = float(value)  # exact
    if not math.isfinite(number):
        return FLOATS[target](number)
    return narrowed(number, target)


def angle(y: Any, x: Any) -> Any:
    """round(8 * atan2(y, x)), in which the last bits of the angle, which nobody promises, are gone."""
    return type(y)(np.rint(8 * math.atan2(y, x)))


def bitcast(value: Any, source: str, target: str) -> Any:
    stored = np.asarray(value, STORAGE[source]).view(STORAGE[target])[()]
    return stored if target in FLOATS else int(stored)


def number(value: Any, dtype: str) -> Any:
    """A literal, or an element of an argument, as the value that the oracle computes with."""
    if dtype == "bool":
        return bool(value)
    if dtype in INTEGERS:
        return int(value)
    if dtype == "number" or isinstance(value, FLOATS[dtype]):
        return value
    return cast(np.float64(value), "f64", dtype)
