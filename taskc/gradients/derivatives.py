"""Derivatives of expressions: a table with a line for each operator, and the terms of an expression's gradient.

    tanh(x[i]) * w[j] if i < n else 0
->
    x[i]:  where i < n:  g * w[j] * (1 - tanh(x[i]) * tanh(x[i]))
    w[j]:  where i < n:  g * tanh(x[i])

A term keeps its conditions apart from its value: they have to be evaluated first. Outside of them the value may read
memory that isn't there, and a product of 0 with an infinite factor is NaN.

Kinks are PyTorch's: docs/gradients.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt

from taskc.dataclass import dataclass
from taskc.errors import CompileError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import as_storage
from taskc.ir.nodes import Expression
from taskc.ir.rewrite import operands_first
from taskc.ir.types import DType


def number(value: float, dtype: DType) -> ir.Constant:
    return ir.Constant(float(as_storage(float(value), dtype)), dtype)


def times(left: Expression, right: Expression) -> Expression:
    """The product; of a constant 1 the other factor."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, ir.Constant) and one.value in (1, -1):
            return other if one.value == 1 else ir.Unary("-", other)
    return ir.Binary("*", left, right)


@dataclass(frozen=True, slots=True)
class Number:
    """An expression with Python's operators, so that the table below reads as formulas do."""

    node: Expression

    def with_(self, operator: str, other: Number | float, *, turned: bool = False) -> Number:
        node = other.node if isinstance(other, Number) else number(other, self.node.dtype)
        left, right = (node, self.node) if turned else (self.node, node)
        return Number(times(left, right) if operator == "*" else ir.Binary(operator, left, right))

    def __add__(self, other: Number | float) -> Number:
        return self.with_("+", other)

    def __sub__(self, other: Number | float) -> Number:
        return self.with_("-", other)

    def __rsub__(self, other: float) -> Number:
        return self.with_("-", other, turned=True)

    def __mul__(self, other: Number | float) -> Number:
        return self.with_("*", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Number | float) -> Number:
        return self.with_("/", other)

    def __rtruediv__(self, other: float) -> Number:
        return self.with_("/", other, turned=True)

    def __neg__(self) -> Number:
        return Number(ir.Unary("-", self.node))

    def of(self, function: str) -> Number:
        return Number(ir.Unary(function, self.node))

    def where(self, condition: Expression, otherwise: Number | float) -> Number:
        """This number where a condition holds, elsewhere `otherwise`."""
        return Number(ir.Select(condition, self.node, _node(otherwise, self.node.dtype)))

    def is_(self, comparison: str, other: Number | float) -> Expression:
        return ir.Binary(comparison, self.node, _node(other, self.node.dtype))


def _node(value: Number | float, dtype: DType) -> Expression:
    return value.node if isinstance(value, Number) else number(value, dtype)


def _sign(x: Number) -> Number:
    one = Number(number(1, x.node.dtype))
    return one.where(x.is_(">", 0.0), (-one).where(x.is_("<", 0.0), 0.0))


def _of_gelu(x: Number, y: Number) -> Number:
    """Phi(x) + x * phi(x). Below -1, where 1 + erf(x) cancels, Phi(x) is gelu(x) / x."""
    normal = 0.5 * (1.0 - (x * -sqrt(0.5)).of("erf"))
    return (y / x).where(x.is_("<", -1.0), normal) + x * (
        1 / sqrt(2 * pi) * (x * x * -0.5).of("exp")
    )


def _of_power(a: Number, b: Number, y: Number) -> tuple[Number, Number]:
    """The derivatives by base and exponent: 0 of a 0th power, and of 0 to a power of 0 or more, as PyTorch's are."""
    base = b * Number(ir.Binary("pow", a.node, (b - 1.0).node))
    is_constant = ir.Binary("and", a.is_("==", 0.0), b.is_(">=", 0.0))
    exponent = (y * a.of("log")).where(ir.Unary("not", is_constant), 0.0)
    return base.where(b.is_("!=", 0.0), 0.0), exponent


def _of_angle(a: Number, b: Number, y: Number) -> tuple[Number, Number]:
    """The derivatives of atan2(a, b): 0 at the origin, as PyTorch's are."""
    squares = a * a + b * b
    apart = squares.is_("!=", 0.0)
    return (b / squares).where(apart, 0.0), (-(a / squares)).where(apart, 0.0)


def _share(a: Number, b: Number, is_less: str) -> Number:
    """1 where a is the result, or one is NaN. Of two equal numbers each has half; at a constant bound both have 0."""
    one = Number(number(1, a.node.dtype))
    if any(isinstance(side.node, ir.Constant | ir.Variable) for side in (a, b)):
        return (one * 0.0).where(a.is_(f"{is_less}=", b), one)
    return (one * 0.0).where(a.is_(is_less, b), (one * 0.5).where(a.is_("==", b), one))


# The factor of the gradient, from the operand x and the result y. None: the result is constant between its steps.
Unary = Callable[[Number, Number], "Number | float"]
UNARY: dict[str, Unary | None] = {
    "-": lambda x, y: -1.0,
    "abs": lambda x, y: _sign(x),
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: -0.5 * y * y * y,
    "exp": lambda x, y: y,
    "exp2": lambda x, y: log(2) * y,
    "expm1": lambda x, y: y + 1.0,
    "fast_exp2": lambda x, y: log(2) * y,
    "log": lambda x, y: 1.0 / x,
    "log2": lambda x, y: 1 / log(2) / x,
    "log1p": lambda x, y: 1.0 / (x + 1.0),
    "sin": lambda x, y: x.of("cos"),
    "cos": lambda x, y: -x.of("sin"),
    "tan": lambda x, y: y * y + 1.0,
    "asin": lambda x, y: (1.0 - x * x).of("rsqrt"),
    "acos": lambda x, y: -(1.0 - x * x).of("rsqrt"),
    "atan": lambda x, y: 1.0 / (x * x + 1.0),
    "sinh": lambda x, y: x.of("cosh"),
    "cosh": lambda x, y: x.of("sinh"),
    "tanh": lambda x, y: 1.0 - y * y,
    "asinh": lambda x, y: (x * x + 1.0).of("rsqrt"),
    "acosh": lambda x, y: (x * x - 1.0).of("rsqrt"),
    "atanh": lambda x, y: 1.0 / (1.0 - x * x),
    "sigmoid": lambda x, y: y * (1.0 - y),
    "erf": lambda x, y: 2 / sqrt(pi) * (-(x * x)).of("exp"),
    "gelu": _of_gelu,
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "isnan", "not")),
    **dict.fromkeys(("~", "popcount", "leading_zeros", "trailing_zeros", "reverse_bits")),
}

# The factors of both operands, from these and the result.
Binary = Callable[[Number, Number, Number], "tuple[Number | float, Number | float]"]
BINARY: dict[str, Binary | None] = {
    "+": lambda a, b, y: (1.0, 1.0),
    "-": lambda a, b, y: (1.0, -1.0),
    "*": lambda a, b, y: (b, a),
    "/": lambda a, b, y: (1.0 / b, -(y / b)),
    # a / b may be rounded up to the next integer.
    "%": lambda a, b, y: (1.0, -Number(ir.Binary("//", a.node, b.node))),
    "fmod": lambda a, b, y: (1.0, -((a - y) / b).of("round")),
    "pow": _of_power,
    "atan2": _of_angle,
    "max": lambda a, b, y: (_share(a, b, "<"), _share(b, a, "<")),
    "min": lambda a, b, y: (_share(a, b, ">"), _share(b, a, ">")),
    **dict.fromkeys(("//", "dot_bytes", "&", "|", "^", "<<", ">>", "and", "or")),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=")),
}


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the gradient of the element that `read` reads: `value` where all conditions hold, outer ones first."""

    read: ir.Read
    conditions: tuple[Expression, ...]
    value: Expression


class _Adjoints:
    """The gradients of an expression's parts: for each a sum under each list of conditions."""

    def __init__(self) -> None:
        self.of_part: dict[
            int, dict[tuple[int, ...], tuple[tuple[Expression, ...], Expression]]
        ] = {}

    def give(self, node: Expression, conditions: tuple[Expression, ...], value: Expression) -> None:
        if not node.dtype.is_float:
            return
        sums, key = self.of_part.setdefault(id(node), {}), tuple(map(id, conditions))
        before = sums.get(key)
        if before is not None:
            value = ir.Binary("+", before[1], value)
        sums[key] = conditions, value


def terms(value: Expression, gradient: Expression) -> list[Term]:
    """The terms of the gradient of each element that a value reads; `gradient` is the value's own."""
    adjoints, found = _Adjoints(), []
    adjoints.give(value, (), gradient)
    for node in reversed(operands_first(value)):
        for conditions, g in adjoints.of_part.get(id(node), {}).values():
            if isinstance(node, ir.Read):
                found.append(Term(node, conditions, g))
            else:
                _propagate(node, conditions, g, adjoints)
    return found


def _propagate(
    node: Expression, conditions: tuple[Expression, ...], g: Expression, adjoints: _Adjoints
) -> None:
    """Give a part's gradient on to its operands."""

    def give(operand: Expression, factor: Number | float) -> None:
        if operand.dtype.is_float:
            adjoints.give(operand, conditions, times(g, _node(factor, g.dtype)))

    match node:
        case ir.Unary(operator=operator, operand=operand):
            if derivative := UNARY[operator]:
                give(operand, derivative(Number(operand), Number(node)))
        case ir.Binary(operator=operator, left=left, right=right):
            if both := BINARY[operator]:
                factors = both(Number(left), Number(right), Number(node))
                for operand, factor in zip((left, right), factors, strict=True):
                    give(operand, factor)
        case ir.Fused(left=left, right=right, addend=addend):
            give(left, Number(right))
            give(right, Number(left))
            give(addend, 1.0)
        case ir.Select(condition=condition, then=then, otherwise=otherwise):
            adjoints.give(then, (*conditions, condition), g)
            adjoints.give(otherwise, (*conditions, ir.Unary("not", condition)), g)
        case ir.Cast(operand=operand):
            if operand.dtype.is_float:
                adjoints.give(operand, conditions, ir.Cast(g, operand.dtype))
        case ir.Bitcast() | ir.Inline():
            raise CompileError("there is no derivative of bits", node.loc)
        case ir.Constant() | ir.Variable() | ir.Lookup() | ir.Address() | ir.Read():
            pass
        case _:
            assert_never(node)
