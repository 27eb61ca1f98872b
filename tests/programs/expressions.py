"""Random expressions that are valid where they stand: in bounds, typed, never dividing by zero."""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass, field, replace

from taskc.passes.simplify_rules import TEXT
from tests.programs.description import Apply, Element, Name, Number, Shape, Value

FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
SIGNED = ("i8", "i16", "i32", "i64")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
NUMBERS_OF = {"float": FLOATS, "int": INTEGERS, "signed": SIGNED, "number": (*FLOATS, *INTEGERS)}


@dataclass(frozen=True)
class Readable:
    """Memory that may be read anywhere."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Scope:
    """What an expression may mention.

    indices  integers that are known to lie in [0, extent)
    own      elements that may be read here and only so: of tiles, and of what this phase writes
    """

    indices: tuple[tuple[str, int], ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()
    memory: tuple[Readable, ...] = ()
    own: tuple[Element, ...] = field(default=())

    def with_indices(self, *pairs: tuple[str, int]) -> Scope:
        return replace(self, indices=(*self.indices, *pairs))

    def with_scalar(self, name: str, dtype: str) -> Scope:
        return replace(self, scalars=(*self.scalars, (name, dtype)))

    def with_memory(self, *memory: Readable) -> Scope:
        return replace(self, memory=(*self.memory, *memory))

    def without(self, *names: str) -> Scope:
        return replace(self, memory=tuple(m for m in self.memory if m.name not in names))


def i64(value: int) -> Number:
    return Number(value, "i64")


def add(left: Value, right: Value) -> Value:
    return Apply("+", (left, right), "i64")


class Expressions:
    def __init__(self, pick: random.Random) -> None:
        self.pick = pick

    # Integers in a range.

    def index(self, extent: int, scope: Scope) -> Value:
        """An integer in [0, extent)."""
        pick = self.pick
        if not scope.indices or pick.random() < 0.08:
            return i64(pick.randrange(extent))
        name, size = pick.choice(scope.indices)
        variable = Name(name)
        forms = [lambda: self.modulo(self.shifted(variable, scope), extent)]
        if size <= extent:
            forms += [lambda: variable] * 3
            forms.append(lambda: Apply("-", (i64(extent - 1), variable), "i64"))
            if size < extent:
                forms.append(lambda: add(variable, i64(pick.randint(1, extent - size))))
        else:
            forms.append(lambda: Apply("min", (variable, i64(extent - 1)), "i64"))
            quotient = -(-size // extent)
            forms.append(lambda: Apply("//", (variable, i64(quotient)), "i64"))
            inside = Apply("<", (variable, i64(extent)), "bool")
            forms.append(lambda: Apply("where", (inside, variable, i64(0)), "i64"))
            forms.append(
                lambda: Apply(
                    "max", (Apply("-", (variable, i64(size - extent)), "i64"), i64(0)), "i64"
                )
            )
        return pick.choice(forms)()

    def modulo(self, value: Value, extent: int) -> Value:
        return Apply("%", (value, i64(extent)), "i64")

    def shifted(self, variable: Value, scope: Scope) -> Value:
        pick = self.pick
        kind = pick.random()
        other = Name(pick.choice(scope.indices)[0])
        if kind < 0.3:
            return add(variable, i64(pick.randint(1, 7)))
        if kind < 0.5:
            return add(Apply("*", (variable, i64(pick.randint(2, 5))), "i64"), other)
        if kind < 0.65:
            return Apply("-", (variable, other), "i64")
        if kind < 0.75:
            return Apply("neg", (add(variable, other),), "i64")
        return add(variable, other)

    # Values.

    def value(self, dtype: str, scope: Scope, depth: int = 2) -> Value:
        pick = self.pick
        if dtype == "bool":
            return self.condition(scope, depth)
        kind = pick.random()
        if depth <= 0 or kind < 0.12:
            return self.leaf(dtype, scope)
        if kind < 0.36:
            return self.by_rule(dtype, scope, depth - 1)
        if kind < 0.42:
            condition = self.condition(scope, depth - 1)
            operands = (condition, *(self.value(dtype, scope, depth - 1) for _ in range(2)))
            return Apply("where", operands, dtype)
        if dtype in FLOATS:
            return self.float(dtype, scope, depth - 1)
        return self.integer(dtype, scope, depth - 1)

    def float(self, dtype: str, scope: Scope, depth: int) -> Value:
        pick = self.pick
        kind = pick.random()
        left = self.value(dtype, scope, depth)
        if kind < 0.15:
            operator = pick.choice(["neg", "abs", "floor", "ceil", "trunc", "round"])
            return Apply(operator, (left,), dtype)
        if kind < 0.2:
            return Apply("sqrt", (Apply("abs", (left,), dtype),), dtype)
        right = self.value(dtype, scope, depth)
        if kind < 0.45:
            third = self.value(dtype, scope, depth)
            if kind < 0.25 and dtype in ("f16", "f32", "f64"):
                return Apply("ptx", (left, right, third), dtype)
            if kind < 0.3:
                return Apply("fma", (left, right, third), dtype)
            product = Apply("*", (left, right), dtype)
            return Apply("+", (product, third) if kind < 0.38 else (third, product), dtype)
        if kind < 0.5:
            # f32(8.0) + x * x is at least 8, unless it is NaN.
            square = Apply("*", (right, right), dtype)
            return Apply("/", (left, Apply("+", (Number(8.0, dtype), square), dtype)), dtype)
        operator = pick.choice(["+", "+", "-", "-", "*", "*", "min", "max"])
        return Apply(operator, (left, right), dtype)

    def integer(self, dtype: str, scope: Scope, depth: int) -> Value:
        pick = self.pick
        kind = pick.random()
        left = self.value(dtype, scope, depth)
        if kind < 0.25:
            divisors = [1, 2, 3, 4, 5, 7, 8, 16]
            if dtype in SIGNED:
                divisors += [-1, -2, -3, -4, -7]
            return Apply(
                pick.choice(["//", "%"]), (left, Number(pick.choice(divisors), dtype)), dtype
            )
        if kind < 0.32:
            # The divisor is odd, and so not 0.
            right = Apply("|", (self.value(dtype, scope, depth), Number(1, dtype)), dtype)
            return Apply(pick.choice(["//", "%"]), (left, right), dtype)
        if kind < 0.42:
            shift = Number(pick.randint(0, 5), dtype)
            return Apply(pick.choice(["<<", ">>"]), (left, shift), dtype)
        if kind < 0.5:
            return Apply(pick.choice(["neg", "invert", "abs"]), (left,), dtype)
        right = self.value(dtype, scope, depth)
        operator = pick.choice(["+", "+", "-", "-", "*", "*", "min", "max", "&", "|", "^"])
        return Apply(operator, (left, right), dtype)

    def leaf(self, dtype: str, scope: Scope) -> Value:
        pick = self.pick
        kind = pick.random()
        if kind < 0.1:
            return self.number(dtype)
        if kind < 0.15:
            return self.folded(dtype)
        if kind < 0.5 and scope.own:
            return self.converted(pick.choice(scope.own), dtype)
        if kind < 0.6 and scope.scalars:
            name, source = pick.choice(scope.scalars)
            return self.converted(Name(name, source), dtype)
        if kind < 0.9 and scope.memory:
            return self.converted(self.read(scope), dtype)
        if scope.indices:
            return self.converted(Name(pick.choice(scope.indices)[0]), dtype)
        return self.number(dtype)

    def folded(self, dtype: str) -> Value:
        """An operator on two constants, which the compiler computes."""
        pick = self.pick
        left, right = self.number(dtype), self.number(dtype)
        if dtype in FLOATS:
            return Apply(pick.choice(["+", "-", "*", "min", "max"]), (left, right), dtype)
        if dtype == "bool" or dtype == "i64":  # Python itself computes on plain numbers
            return left
        operator = pick.choice(
            ["//", "//", "%", "%", "+", "-", "*", "<<", ">>", "min", "max", "&", "^"]
        )
        if operator in ("//", "%", "<<", ">>"):
            signs = (
                (3, 4, 7, -3, -7) if dtype in SIGNED and operator in ("//", "%") else (1, 3, 4, 7)
            )
            right = Number(pick.choice(signs), dtype)
        return Apply(operator, (left, right), dtype)

    def read(self, scope: Scope) -> Element:
        # What was made last has been read least.
        recent = self.pick.random() < 0.5
        memory = self.pick.choice(scope.memory[-2:] if recent else scope.memory)
        indices = tuple(self.index(extent, scope) for extent in memory.shape)
        return Element(memory.name, indices, memory.dtype)

    def guarded_read(self, dtype: str, scope: Scope) -> Value:
        """An element beside, where there is one: only the condition keeps it in bounds."""
        pick = self.pick
        choices = [
            (m, name) for m in scope.memory for name, size in scope.indices if size <= m.shape[0]
        ]
        if not choices:
            return self.leaf(dtype, scope)
        memory, name = pick.choice(choices)
        distance = pick.randint(1, 2)
        below = pick.random() < 0.5
        place = Apply("-" if below else "+", (Name(name), i64(distance)), "i64")
        condition = (
            Apply(">=", (place, i64(0)), "bool")
            if below
            else Apply("<", (place, i64(memory.shape[0])), "bool")
        )
        rest = tuple(self.index(extent, scope) for extent in memory.shape[1:])
        element = Element(memory.name, (place, *rest), memory.dtype)
        fallback = self.number(memory.dtype)
        if memory.dtype == "bool":
            return self.converted(Apply("and", (condition, element), "bool"), dtype)
        chosen = Apply("where", (condition, element, fallback), memory.dtype)
        return self.converted(chosen, dtype)

    def number(self, dtype: str) -> Number:
        pick = self.pick
        if dtype == "bool":
            return Number(pick.random() < 0.5, dtype)
        if dtype in FLOATS:
            return Number(pick.choice([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 0.1, 7.25]), dtype)
        if dtype in SIGNED:
            return Number(pick.choice([0, 1, -1, 2, 3, -4, 5, 8, 100, -128]), dtype)
        return Number(pick.choice([0, 1, 2, 3, 5, 8, 100, 255]), dtype)

    def converted(self, value: Value, dtype: str) -> Value:
        source = value.dtype
        if source == dtype:
            return value
        if source == "bool":
            return Apply("where", (value, Number(1, dtype), Number(0, dtype)), dtype)
        if dtype == "bool":
            return Apply("!=", (value, Number(0, source)), "bool")
        if source in FLOATS and dtype in INTEGERS:
            # What does not fit, NaN included, is never converted.
            small = Apply("<", (Apply("abs", (value,), source), Number(100.0, source)), "bool")
            value = Apply("where", (small, value, Number(0.0, source)), source)
            if dtype not in SIGNED:
                value = Apply("abs", (value,), source)
        return Apply("cast", (value,), dtype)

    # Conditions.

    def condition(self, scope: Scope, depth: int = 1) -> Value:
        pick = self.pick
        kind = pick.random()
        if kind < 0.35:
            return self.by_rule("bool", scope, depth - 1)
        if depth > 0 and kind < 0.45:
            parts = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
            return Apply(pick.choice(["and", "or"]), parts, "bool")
        if depth > 0 and kind < 0.46:
            return Apply("not", (self.condition(scope, depth - 1),), "bool")
        bools = [element for element in scope.own if element.dtype == "bool"]
        if bools and kind < 0.5:
            return pick.choice(bools)
        dtype = pick.choice(["i64", "i64", "i64", "i32", "f32", "u8", "f16"])
        if kind < 0.8 and scope.indices:
            name, size = pick.choice(scope.indices)
            bound = i64(pick.randint(-1, size + 1))
            return Apply(pick.choice(COMPARISONS), (Name(name), bound), "bool")
        if kind < 0.83:
            return Apply(
                "isnan", (self.value(pick.choice(["f32", "f16"]), scope, depth - 1),), "bool"
            )
        left, right = (self.value(dtype, scope, depth - 1) for _ in range(2))
        return Apply(pick.choice(COMPARISONS), (left, right), "bool")

    def decided(self, value: bool, scope: Scope) -> Value:
        """A condition that the bounds of a variable decide."""
        if not scope.indices:
            return Number(value, "bool")
        name, size = self.pick.choice(scope.indices)
        sides = (Name(name), i64(0)) if self.pick.random() < 0.5 else (i64(size - 1), Name(name))
        return Apply(">=" if value else "<", sides, "bool")

    # Instances of what the simplifier looks for.

    def by_rule(self, dtype: str, scope: Scope, depth: int) -> Value:
        """The left side of a rule, with random parts."""
        pick = self.pick
        rules = _RULES_FOR[dtype]
        ((kind, pattern),) = pick.choices(rules, [_WEIGHTS[id(rule)] for _, rule in rules])
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
        return self.instance(pattern, letters, scope, max(depth, 0), known)

    def instance(
        self, node: ast.expr, dtype: str, scope: Scope, depth: int, known: dict[str, Value]
    ) -> Value:
        pick = self.pick

        def part(inner: ast.expr, kind: str = dtype) -> Value:
            return self.instance(inner, kind, scope, depth, known)

        match node:
            case ast.Name(id=letter):
                if letter not in known:
                    if letter in "ab":
                        known[letter] = self.number(dtype)
                    else:
                        of = "bool" if letter == "p" else dtype
                        named = [name for name, t in scope.scalars if t == of == "bool"]
                        if named and pick.random() < 0.8:
                            known[letter] = Name(pick.choice(named), of)
                        else:
                            known[letter] = self.value(of, scope, min(depth, 1))
                return known[letter]
            case ast.Constant(value=bool() as value):
                return self.decided(value, scope)
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
                    right = Apply("|", (right, Number(1, dtype)), dtype)  # never 0
                    if isinstance(right.operands[0], Number):
                        right = Number(3, dtype)
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


def _rules_for(dtype: str) -> list[tuple[str, ast.expr]]:
    """The rules whose left side has a value of this type."""
    found = []
    for line in TEXT.strip().splitlines():
        kind, _, text = line.partition(": ")
        pattern = ast.parse(text.split(" -> ")[0], mode="eval").body
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
            found.append((kind, pattern))
    return found


_RULES_FOR = {dtype: _rules_for(dtype) for dtype in (*FLOATS, *INTEGERS, "bool")}


def _weight(pattern: ast.expr) -> int:
    """How much more often a rule is tried that rarely finds the simplifier's other rules at rest."""
    nodes = list(ast.walk(pattern))
    if sum(isinstance(node, ast.Not) for node in nodes) > 1:
        return 8
    if any(isinstance(node, (ast.UnaryOp, ast.Call, ast.Compare)) for node in nodes):
        return 4
    return 3 if _repeated(pattern) or isinstance(pattern, ast.BoolOp) else 2


_WEIGHTS = {id(pattern): _weight(pattern) for rules in _RULES_FOR.values() for _, pattern in rules}
