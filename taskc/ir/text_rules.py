"""The common conventions of the printer and the parser of the IR: words, precedence, numbers, inferred types.

A number is written without its type if the type can be inferred. Among the operands of an operator the
first that isn't constant determines the type of the others; if all are constants they have the type
that the surroundings expect: that of a store's target or a declared variable, i64 for an index.
Without an expectation it is i64. Everywhere else a constant has a type: `f32(1.5)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

import numpy as np

from taskc.ir.arithmetic import COMPARISONS, UNARY_OPERATORS, convert
from taskc.ir.nodes import Constant, Expression, Fused, Select, Sequence, Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import STATEMENT_TYPES
from taskc.ir.types import DTYPES, DType, boolean, f64, i64

# Python's precedence, from the loosest to the tightest. Comparisons don't chain.
PRECEDENCE: dict[str, int] = {
    operator: level
    for level, operators in (
        (1, "or"),
        (2, "and"),
        (4, "== != < <= > >="),
        (5, "|"),
        (6, "^"),
        (7, "&"),
        (8, "<< >>"),
        (9, "+ -"),
        (10, "* / // %"),
    )
    for operator in operators.split()
}
COMPARISON, NOT, SIGN, POSTFIX = 4, 3, 11, 12
PREFIXES: dict[str, int] = {"not": NOT, "-": SIGN, "~": SIGN}

BINARY_FUNCTIONS = frozenset({"min", "max", "pow", "fmod", "atan2", "dot_bytes"})
UNARY_FUNCTIONS = frozenset(UNARY_OPERATORS) - frozenset(PREFIXES)
# Nodes that are written as calls, with their number of leading conditions; the other operands have one type.
CALLS: dict[str, tuple[type, int]] = {"select": (Select, 1), "fma": (Fused, 0)}
# The functions that a call in an expression may name, besides snippets; a type makes a constant.
FUNCTIONS = BINARY_FUNCTIONS | UNARY_FUNCTIONS | {*CALLS, *DTYPES}

# Words that may start a statement or an expression, and can't be names.
RESERVED = {kind.__name__.lower() for kind in STATEMENT_TYPES} | set(
    (
        "constant global shared tile local register mbarrier elif else acquire commit wait release enter leave"
        " role ring table snippet combine scope pass and or not True False inf nan worker block processors"
    ).split()
)
# Words that start a statement of a program, where otherwise a kernel's name comes.
PROGRAM_WORDS = frozenset({"constant", "for", "if", "pass", "temporary", "view", "while"})

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_WORD = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_word(text: str) -> bool:
    """Whether an option's value, such as `cp.async`, is written without quotes."""
    return bool(_WORD.fullmatch(text))


def identifier(name: str) -> str:
    """`name`, or a similar one that the grammar accepts as a name."""
    if not _IDENTIFIER.fullmatch(name):
        name = re.sub(r"\W", "_", name)
        name = name if _IDENTIFIER.fullmatch(name) else f"_{name}"
    return name


def unused(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def single_statement(body: Statement) -> Statement:
    """The statement under a header: a Sequence of one statement is replaced by that statement."""
    while isinstance(body, Sequence) and len(body.statements) == 1:
        body = body.statements[0]
    return body


def operand_type(operands: Iterable[Expression], expected: DType | None) -> DType | None:
    """The type of untyped constants among these operands."""
    for operand in operands:
        if type(operand) is not Constant:
            return operand.dtype
    return expected


def surroundings(operator: str, expected: DType | None) -> DType | None:
    """The type expected of an operator's operands, given that expected of its result."""
    return None if operator in COMPARISONS or operator in ("not", "isnan") else expected


def result_type(operation: str, operands: tuple[Expression, ...]) -> DType | None:
    """The type of a `Do`'s result, or None if it has none or is unknown."""
    row = OPERATIONS.get(operation)
    if row is None or row.result is None:
        return None
    if isinstance(row.result, DType):
        return row.result
    return operands[0].dtype if operands else None


def number_text(value: float, dtype: DType) -> str:
    """The shortest text that `number` parses as this value of this type."""
    if dtype is boolean:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    value = float(value)
    if math.isnan(value):
        return "nan"
    if value.is_integer() and abs(value) < 1e6:
        return repr(value)
    return _shortest(value, dtype)


@lru_cache(maxsize=4096)
def _shortest(value: float, dtype: DType) -> str:
    text = repr(value)
    if dtype is f64 or math.isinf(value) or not is_representable(value, dtype):
        return text
    for digits in range(1, 17):
        short = repr(float(f"{value:.{digits}g}"))
        if len(short) < len(text) and rounded(float(short), dtype) == value:
            return short
    return text


def number(text: str, dtype: DType) -> int | float:
    """The value of a number, rounded to a float type. ValueError if the type doesn't have it."""
    if dtype.is_float:
        return rounded(float(text), dtype)
    if dtype is boolean or not text.lstrip("-").isdecimal():
        raise ValueError(f"{text} is no {dtype}")
    value = int(text)
    if not dtype.minimum <= value <= dtype.maximum:
        raise ValueError(f"{text} is outside the range of {dtype}")
    return value


@lru_cache(maxsize=4096)
def _rounded(value: float, dtype: DType) -> float:
    return float(convert(np.float64(value), f64, dtype))


def rounded(value: float, dtype: DType) -> float:
    """The nearest value of a float type."""
    if value == 0.0 or dtype is f64:  # -0.0 and 0.0 are one key
        return value
    return _rounded(value, dtype)


def is_representable(value: object, dtype: DType) -> bool:
    """Whether a Constant of this type may hold the value."""
    if dtype is boolean:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if dtype.is_float:
        try:
            value = float(value)
        except OverflowError:
            return False
        return math.isnan(value) or rounded(value, dtype) == value
    return isinstance(value, int) and dtype.minimum <= value <= dtype.maximum


def default_type(expected: DType | None) -> DType:
    """The type of a number without one; a number can't be a bool."""
    return i64 if expected is None or expected is boolean else expected
