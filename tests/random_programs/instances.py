"""Random instances of what the simplifier looks for: the left sides of its rules."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from taskc.passes.simplify_rules import TEXT
from tests.random_programs.description import Apply, Name, Number, Value
from tests.random_programs.numbers import FLOATS, INTEGERS, SIGNED
from tests.random_programs.scope import Scope

if TYPE_CHECKING:
    from tests.random_programs.expressions import Expressions

# What looks like an instance of a rule, and must not be taken for one.
TEMPTING = """
int: (x // 3) // 5
signed: (x // 3) // -2
int: (x % 6) % 4
int: (x % 6) // 4
int: (x % 7) // 3
int: (x * 3) // 3
int: (x << 3) >> 3
int: (x // 4) * 4 + x % 4
int: (x // 4) * 4 + x % 8
int: abs(-x)
int: -x < 3
int: x + a < b
int: x * 2 < 5
int: x * 4 >= -6
int: min(x, max(x, y))
int: max(x, min(x, y))
number: -(x * a)
float: fused(x, -1, y)
float: x == x
float: x <= x
float: not (x < y)
float: not (x >= y)
float: x + 0
float: 0 - x
float: x - x
float: (x + y) - y
float: x / 3
float: (x * 3) * 7
"""

NUMBERS_OF = {
    "float": tuple(FLOATS), "int": tuple(INTEGERS), "signed": SIGNED, "number": (*FLOATS, *INTEGERS),
}  # fmt: skip


def by_rule(make: Expressions, dtype: str, scope: Scope, depth: int) -> Value:
    """The left side of a rule, with random parts."""
    pick = make.pick
    rules = _RULES_FOR[dtype]
    ((kind, pattern, _),) = pick.choices(rules, [weight for _, _, weight in rules])
    is_test = _is_test(pattern)
    letters = dtype
    repeated = _repeated(pattern)
    if is_test and kind != "bool":
        numbers = NUMBERS_OF.get(kind, ("i64", "i32", "f32", "u8"))
        named = [t for _, t in scope.scalars if t in numbers] if repeated else []
        choices = [t for t in ("i64", "i64", "i32", "f32", "u8") if t in numbers]
        letters = pick.choice(named or choices)
    # Only what has a name is the same value twice.
    known: dict[str, Value] = {}
    for letter in repeated:
        of = "bool" if letter == "p" else letters
        names: list[Value] = [Name(name, t) for name, t in scope.scalars if t == of]
        if of == "i64":
            names += [Name(name) for name, _ in scope.indices]
        if names:
            known[letter] = pick.choice(names)
    return instance(make, pattern, letters, scope, max(depth, 0), known)


def instance(
    make: Expressions, node: ast.expr, dtype: str, scope: Scope, depth: int, known: dict[str, Value]
) -> Value:
    pick = make.pick

    def part(inner: ast.expr, kind: str = dtype) -> Value:
        return instance(make, inner, kind, scope, depth, known)

    match node:
        case ast.Name(id=letter):
            if letter not in known:
                if letter in "ab":
                    known[letter] = make.number(dtype)
                else:
                    of = "bool" if letter == "p" else dtype
                    named = [name for name, t in scope.scalars if t == of == "bool"]
                    if named and pick.random() < 0.8:
                        known[letter] = Name(pick.choice(named), of)
                    else:
                        known[letter] = make.value(of, scope, min(depth, 1))
            return known[letter]
        case ast.Constant(value=bool() as value):
            return make.decided(value, scope)
        case ast.Constant(value=int() as value):
            return Number(value, dtype)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return Number(-value if dtype not in INTEGERS or dtype in SIGNED else value, dtype)
        case ast.UnaryOp(op=ast.Not()):
            return Apply("not", (part(node.operand, _inside_not(node.operand, dtype)),), "bool")
        case ast.UnaryOp():
            operator = "neg" if isinstance(node.op, ast.USub) else "invert"
            return Apply(operator, (part(node.operand),), dtype)
        case ast.BinOp():
            left, right = part(node.left), part(node.right)
            if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and right != Number(1, dtype):
                written = right
                right = Apply("|", (right, Number(1, dtype)), dtype)  # never 0
                if isinstance(written, Number):
                    right = written if written.value else Number(3, dtype)
            return Apply(_BINARY[type(node.op)], (left, right), dtype)
        case ast.BoolOp(values=[left, right]):
            operator = "and" if isinstance(node.op, ast.And) else "or"
            return Apply(operator, (part(left, "bool"), part(right, "bool")), "bool")
        case ast.Compare():
            operator = _COMPARE[type(node.ops[0])]
            operands = (part(node.left), part(node.comparators[0]))
            return Apply(operator, operands, "bool")
        case ast.Call(func=ast.Name(id="select")):
            condition, then, otherwise = node.args
            decider = part(condition, "bool")
            return Apply("where", (decider, part(then), part(otherwise)), dtype)
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    name = "fma" if node.func.id == "fused" else node.func.id
    return Apply(name, tuple(part(argument) for argument in node.args), dtype)


def _repeated(pattern: ast.expr) -> set[str]:
    letters = [node.id for node in ast.walk(pattern) if isinstance(node, ast.Name)]
    return {letter for letter in letters if letters.count(letter) > 1 and len(letter) == 1}


def _inside_not(operand: ast.expr, dtype: str) -> str:
    return "bool" if isinstance(operand, (ast.Name, ast.UnaryOp)) else dtype


def _is_test(pattern: ast.expr) -> bool:
    return isinstance(pattern, (ast.Compare, ast.BoolOp)) or (
        isinstance(pattern, ast.UnaryOp) and isinstance(pattern.op, ast.Not)
    )


_BINARY: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARE: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


_INTEGERS_ONLY = (
    ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift, ast.Invert,
)  # fmt: skip


def _rules_for(dtype: str) -> list[tuple[str, ast.expr, int]]:
    """The rules whose left side has a value of this type, and how often to try them."""
    found = []
    for line in (TEXT.strip() + TEMPTING.rstrip()).splitlines():
        kind, _, text = line.partition(": ")
        left, arrow, _ = text.partition(" -> ")
        pattern = ast.parse(left, mode="eval").body
        if _is_test(pattern):
            fits = dtype == "bool"
        elif kind in ("any", "bool"):
            fits = kind == "any" or dtype == "bool"
        elif dtype in FLOATS:
            # Rules of integers too: what looks like one must not be treated as one.
            fits = all(type(node) not in _INTEGERS_ONLY for node in ast.walk(pattern))
        else:
            fits = dtype in INTEGERS and kind != "float"
        if fits:
            found.append((kind, pattern, _weight(pattern) if arrow else 1))
    return found


def _weight(pattern: ast.expr) -> int:
    """How much more often a rule is tried that rarely finds the simplifier's other rules at rest."""
    nodes = list(ast.walk(pattern))
    has_truth = any(isinstance(node, ast.Constant) and node.value is True for node in nodes)
    if sum(isinstance(node, ast.Not) for node in nodes) > 1 or has_truth:
        return 10
    if isinstance(pattern, ast.Compare) and isinstance(pattern.left, ast.BinOp):
        return 10
    if any(isinstance(node, (ast.UnaryOp, ast.Call, ast.Compare)) for node in nodes):
        return 4
    return 4 if _repeated(pattern) or isinstance(pattern, ast.BoolOp) else 2


_RULES_FOR = {dtype: _rules_for(dtype) for dtype in (*FLOATS, *INTEGERS, "bool")}
