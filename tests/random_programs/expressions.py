"""Random expressions that are valid where they stand: in bounds, typed, never dividing by zero."""

from __future__ import annotations

import random

from tests.random_programs.description import Apply, Element, Name, Number, Value
from tests.random_programs.instances import by_rule
from tests.random_programs.numbers import FLOATS, INTEGERS, SIGNED
from tests.random_programs.scope import Scope, add, i64

BIT_OPERATORS = ("popcount", "leading_zeros", "trailing_zeros", "reverse_bits")
SAME_SIZE = {"f16": "u16", "bf16": "u16", "f32": "u32", "f64": "u64"}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


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
            return by_rule(self, dtype, scope, depth - 1)
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
            if kind < 0.02:  # no draw of its own, likewise
                return without_sign(left)
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
        if kind < 0.04:
            return self.guarded_division(left, dtype, scope, depth)
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
            operator = pick.choice(["neg", "invert", "abs"])
            if kind < 0.46:
                return Apply(operator, (left,), dtype)
            # No draws of their own: programs of a number stay what they are.
            same_size = [name for name in FLOATS if SAME_SIZE[name][-2:] == dtype[-2:]]
            operator = (*BIT_OPERATORS, *same_size)[int(kind * 1e6) % (4 + len(same_size))]
            if operator in FLOATS:
                return Apply("bitcast", (Apply("cast", (left,), operator),), dtype)
            return Apply(operator, (left,), dtype)
        right = self.value(dtype, scope, depth)
        operator = pick.choice(["+", "+", "-", "-", "*", "*", "min", "max", "&", "|", "^"])
        return Apply(operator, (left, right), dtype)

    def guarded_division(self, left: Value, dtype: str, scope: Scope, depth: int) -> Value:
        """A quotient or remainder that only a condition keeps from dividing by 0."""
        right = self.value(dtype, scope, min(depth, 1))
        isnt_zero = Apply("!=", (right, Number(0, dtype)), "bool")
        quotient = Apply(self.pick.choice(["//", "%"]), (left, right), dtype)
        return Apply("where", (isnt_zero, quotient, left), dtype)

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

    def digest(self, value: Value) -> Value:
        """An i64 that tells floats apart to the last bits, -0.0 and NaN too."""
        if value.dtype not in FLOATS:
            return self.converted(value, "i64")
        wide = self.converted(value, "f64")
        is_small = Apply("<", (Apply("abs", (wide,), "f64"), Number(100.0, "f64")), "bool")
        scaled = Apply("*", (wide, Number(2.0**40, "f64")), "f64")
        digits = Apply("where", (is_small, scaled, Number(0.0, "f64")), "f64")
        inverse = Apply("/", (Number(1.0, "f64"), wide), "f64")
        is_minus = Apply("<", (inverse, Number(0.0, "f64")), "bool")
        sign = Apply("where", (is_minus, i64(1), i64(2)), "i64")
        number = add(Apply("cast", (digits,), "i64"), sign)
        return Apply("where", (Apply("isnan", (value,), "bool"), i64(7), number), "i64")

    # Conditions.

    def condition(self, scope: Scope, depth: int = 1) -> Value:
        pick = self.pick
        kind = pick.random()
        if kind < 0.35:
            return by_rule(self, "bool", scope, depth - 1)
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


def without_sign(value: Value) -> Value:
    """The absolute value of a float, by its bits; a NaN stays one, whatever its bits are."""
    bits = SAME_SIZE[value.dtype]
    rest = Number((1 << int(bits[1:]) - 1) - 1, bits)
    return Apply(
        "bitcast",
        (Apply("&", (Apply("bitcast", (value,), bits), rest), bits),),
        value.dtype,
    )
