"""The algebra of `simplify`, as data.

A line is `type: pattern -> replacement`, in Python's syntax, and is its own name. Letters match any
expression, except `a` and `b`, which match constants; a letter that occurs twice matches the same
expression twice. The type restricts `x`: int, signed, float, number (both), bool or any.
Functions of constants are folded afterwards. No rules change a float: x + 0
would turn -0 into 0, and x * 0 loses NaN.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from taskc.dataclass import dataclass
from taskc.ir.nodes import Binary, Constant, Expression, Fused, Select, Unary
from taskc.ir.types import DType, boolean

TEXT = """
int: x + 0 -> x
int: 0 + x -> x
int: x - 0 -> x
int: 0 - x -> -x
int: x - x -> 0
int: x * 0 -> 0
int: 0 * x -> 0
number: x * 1 -> x
number: 1 * x -> x
float: x / 1 -> x
signed: x * -1 -> -x
int: a + x -> x + a
int: a * x -> x * a
int: (x + a) + b -> x + (a + b)
int: (x - a) + b -> x + (b - a)
int: (x + a) - b -> x + (a - b)
int: (x - a) - b -> x - (a + b)
int: (x * a) * b -> x * (a * b)
int: (x + y) - y -> x
int: (y + x) - y -> x
int: (x - y) + y -> x
int: x + -y -> x - y
int: x - -y -> x + y
int: x // 1 -> x
int: x % 1 -> 0
int: 0 // x -> 0
int: 0 % x -> 0
number: -(-x) -> x
signed: abs(-x) -> abs(x)
float: abs(-x) -> abs(x)
number: abs(abs(x)) -> abs(x)
int: ~(~x) -> x
int: x & 0 -> 0
int: x & x -> x
int: x | 0 -> x
int: x | x -> x
int: x ^ 0 -> x
int: x ^ x -> 0
int: x << 0 -> x
int: x >> 0 -> x
number: min(x, x) -> x
number: max(x, x) -> x
int: min(x, min(x, y)) -> min(x, y)
int: max(x, max(x, y)) -> max(x, y)
int: x == x -> True
int: x != x -> False
int: x <= x -> True
int: x >= x -> True
int: x < x -> False
int: x > x -> False
int: x + a == b -> x == b - a
int: x + a != b -> x != b - a
any: not (x == y) -> x != y
any: not (x != y) -> x == y
int: not (x < y) -> x >= y
int: not (x <= y) -> x > y
int: not (x > y) -> x <= y
int: not (x >= y) -> x < y
bool: not (not x) -> x
bool: True and x -> x
bool: x and True -> x
bool: False and x -> False
bool: x and False -> False
bool: True or x -> True
bool: x or True -> True
bool: False or x -> x
bool: x or False -> x
any: select(True, x, y) -> x
any: select(False, x, y) -> y
any: select(p, x, x) -> x
any: select(not p, x, y) -> select(p, y, x)
any: select(p, select(q, x, y), y) -> select(p and q, x, y)
bool: select(x, True, False) -> x
bool: select(x, False, True) -> not x
bool: select(p, x, False) -> p and x
bool: select(p, True, x) -> p or x
float: fused(x, 1, y) -> x + y
float: fused(1, x, y) -> x + y
"""

Bindings = dict[str, Expression]
Match = Callable[[Expression, Bindings], bool]
Make = Callable[[Expression], Expression]
Build = Callable[[Bindings, DType, Make], Expression]

_OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.And: "and", ast.Or: "or", ast.USub: "-", ast.Invert: "~", ast.Not: "not",
}  # fmt: skip

_TYPES: dict[str, Callable[[DType], bool]] = {
    "int": lambda dtype: dtype.is_integer,
    "signed": lambda dtype: dtype.kind == "int",
    "float": lambda dtype: dtype.is_float,
    "number": lambda dtype: dtype.is_integer or dtype.is_float,
    "bool": lambda dtype: dtype is boolean,
    "any": lambda dtype: True,
}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    root: tuple[type, str]  # node type and operator
    operands: tuple[type | None, ...]  # the required node types of the operands
    matches: Match
    admits: Callable[[DType], bool]
    build: Build

    def apply(self, node: Expression, make: Make) -> Expression | None:
        """The replacement, its new nodes passed through `make`, or None if the rule doesn't match."""
        bindings: Bindings = {}
        if not self.matches(node, bindings) or not self.admits(bindings["x"].dtype):
            return None
        count = _FIRINGS.get()
        if count is not None:
            count[self.name] += 1
        return self.build(bindings, bindings["x"].dtype, make)


_FIRINGS: ContextVar[Counter[str] | None] = ContextVar("firings", default=None)


@contextmanager
def counting_rules() -> Iterator[Counter[str]]:
    """Count how often each rule fires meanwhile."""
    counter: Counter[str] = Counter()
    token = _FIRINGS.set(counter)
    try:
        yield counter
    finally:
        _FIRINGS.reset(token)


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(_parse(line) for line in TEXT.strip().splitlines())


@cache
def candidates(root: type, operator: str, operands: tuple[type, ...]) -> tuple[Rule, ...]:
    """The rules that may match a node with operands of these types."""
    return tuple(
        rule
        for rule in rules()
        if rule.root == (root, operator)
        and all(
            wanted is None or wanted is given
            for wanted, given in zip(rule.operands, operands, strict=True)
        )
    )


def same(left: Expression, right: Expression) -> bool:
    """Whether two expressions surely have the same value at the same moment. Big expressions are not compared."""
    return left is right or _same(left, right, [48])


def _same(left: Expression, right: Expression, budget: list[int]) -> bool:
    if left is right:
        return True
    budget[0] -= 1
    if type(left) is not type(right) or left.dtype is not right.dtype or budget[0] < 0:
        return False
    if isinstance(left, Constant) and isinstance(right, Constant):
        return repr(left.value) == repr(right.value)  # distinguishes -0.0 from 0.0
    if getattr(left, "operator", None) != getattr(right, "operator", None):
        return False
    return _PARTS.get(type(left)) is not None and all(
        _same(getattr(left, name), getattr(right, name), budget) for name in _PARTS[type(left)]
    )


_PARTS: dict[type, tuple[str, ...]] = {
    Unary: ("operand",),
    Binary: ("left", "right"),
    Fused: ("left", "right", "addend"),
    Select: ("condition", "then", "otherwise"),
}


# --- parsing the rules -----------------------------------------------------------------------


def _parse(line: str) -> Rule:
    kind, _, text = line.partition(": ")
    pattern, replacement = (
        ast.parse(side.strip(), mode="eval").body for side in text.split(" -> ")
    )
    root, operands = _shape(pattern)
    return Rule(
        line,
        root,
        tuple(_operand_type(operand) for operand in operands),
        _matcher(pattern),
        _TYPES[kind],
        _builder(replacement),
    )


def _shape(node: ast.expr) -> tuple[tuple[type, str], list[ast.expr]]:
    """The node type, operator and operands that a piece of syntax represents."""
    match node:
        case ast.BinOp():
            return (Binary, _OPERATORS[type(node.op)]), [node.left, node.right]
        case ast.BoolOp(values=[left, right]):
            return (Binary, _OPERATORS[type(node.op)]), [left, right]
        case ast.Compare(ops=[operator], comparators=[right]):
            return (Binary, _OPERATORS[type(operator)]), [node.left, right]
        case ast.UnaryOp():
            return (Unary, _OPERATORS[type(node.op)]), [node.operand]
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            return (Binary, name), node.args
        case ast.Call(func=ast.Name(id="select")):
            return (Select, ""), node.args
        case ast.Call(func=ast.Name(id="fused")):
            return (Fused, ""), node.args
        case ast.Call(func=ast.Name(id=name)):
            return (Unary, name), node.args
    raise ValueError(f"not an expression of a rule: {ast.unparse(node)}")


def _literal(node: ast.expr) -> bool | int | None:
    match node:
        case ast.Constant(value=bool() | int() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
    return None


def _operand_type(node: ast.expr) -> type | None:
    if isinstance(node, ast.Name):
        return Constant if node.id in "ab" else None
    return Constant if _literal(node) is not None else _shape(node)[0][0]


def _matcher(node: ast.expr) -> Match:
    literal = _literal(node)
    if literal is not None:

        def is_literal(given: Expression, bindings: Bindings) -> bool:
            return (
                type(given) is Constant
                and given.value == literal
                and (given.dtype is boolean) == isinstance(literal, bool)
            )

        return is_literal
    if isinstance(node, ast.Name):
        name, constant = node.id, node.id in "ab"

        def bind(given: Expression, bindings: Bindings) -> bool:
            if constant and type(given) is not Constant:
                return False
            known = bindings.setdefault(name, given)
            return known is given or same(known, given)

        return bind
    (kind, operator), operands = _shape(node)
    parts = [
        (name, _matcher(operand)) for name, operand in zip(_PARTS[kind], operands, strict=True)
    ]

    def matches(given: Expression, bindings: Bindings) -> bool:
        if type(given) is not kind or (operator and getattr(given, "operator", "") != operator):
            return False
        return all(part(getattr(given, name), bindings) for name, part in parts)

    return matches


def _builder(node: ast.expr) -> Build:
    literal = _literal(node)
    if literal is not None:

        def constant(bindings: Bindings, dtype: DType, make: Make) -> Expression:
            return Constant(literal, boolean if isinstance(literal, bool) else dtype)

        return constant
    if isinstance(node, ast.Name):
        name = node.id
        return lambda bindings, dtype, make: bindings[name]
    (kind, operator), operands = _shape(node)
    parts = [_builder(operand) for operand in operands]

    def build(bindings: Bindings, dtype: DType, make: Make) -> Expression:
        built = [part(bindings, dtype, make) for part in parts]
        return make(kind(operator, *built) if operator else kind(*built))

    return build
