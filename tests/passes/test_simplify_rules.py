"""The rules of simplify: each one fires, and is true."""

from __future__ import annotations

from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.nodes import (
    Binary,
    Cast,
    Constant,
    Expression,
    Select,
    Unary,
    constant,
)
from taskc.ir.types import boolean, f32
from taskc.passes.simplify import simplified_expression
from taskc.passes.simplify_rules import counting_rules, rules
from tests.analysis.test_facts import random_facts
from tests.evaluator import Generator, Machine
from tests.passes.test_simplify import bits


def instance_of(rule: str, generator: Generator) -> Expression:
    """A random expression that the left side of a rule describes."""
    kind, _, text = rule.partition(": ")
    letters: dict[str, Any] = {}

    def undecided(depth: int) -> Expression:
        left = Cast(generator.random.choice(generator.variables), f32)
        return Binary("<", left, generator.float(0))

    make = {
        "bool": undecided,
        "float": generator.float,
    }.get(kind, generator.integer)
    number = {"float": lambda n: Constant(float(n), f32)}.get(kind, constant)
    for letter in "xyz":
        letters[letter] = _Syntax(make(1))
    letters["p"], letters["q"] = _Syntax(undecided(1)), _Syntax(undecided(1))
    letters["a"], letters["b"] = (
        _Syntax(constant(generator.random.randrange(-3, 9))) for _ in "ab"
    )
    pattern = text.split(" -> ")[0]
    for word, function in {" and ": " & ", " or ": " | ", "not ": "~"}.items():
        if kind in ("bool", "any") or word == "not ":
            pattern = pattern.replace(word, function)

    def select(c: Any, x: Any, y: Any) -> _Syntax:
        return _Syntax(Select(*(_node(part, number) for part in (c, x, y))))

    def fused(x: Any, y: Any, z: Any) -> _Syntax:
        return _Syntax(ir.Fused(*(_node(part, number) for part in (x, y, z))))

    functions = {
        "select": select,
        "fused": fused,
        "min": lambda x, y: x.binary("min", y),
        "max": lambda x, y: x.binary("max", y),
        "abs": lambda x: _Syntax(Unary("abs", x.node)),
    }
    result: _Syntax = eval(pattern, {**functions, **letters, "True": True})
    return result.node


def _node(value: Any, number: Any = constant) -> Expression:
    if isinstance(value, _Syntax):
        return value.node
    return Constant(value, boolean) if isinstance(value, bool) else number(value)


class _Syntax:
    """Python operators that build nodes."""

    def __init__(self, node: Expression) -> None:
        self.node = node

    def binary(self, operator: str, other: Any, swapped: bool = False) -> _Syntax:
        dtype = self.node.dtype
        if isinstance(other, _Syntax):
            right = other.node
        elif isinstance(other, bool):
            right = Constant(other, boolean)
        else:
            right = Constant(float(other) if dtype is f32 else other, dtype)
        return _Syntax(Binary(operator, *((right, self.node) if swapped else (self.node, right))))

    def _and(self, other: Any, operator: str, swapped: bool = False) -> _Syntax:
        words = {"&": "and", "|": "or"} if self.node.dtype is boolean else {}
        return self.binary(words.get(operator, operator), other, swapped)

    __add__ = lambda self, other: self.binary("+", other)  # noqa: E731
    __radd__ = lambda self, other: self.binary("+", other, True)  # noqa: E731
    __sub__ = lambda self, other: self.binary("-", other)  # noqa: E731
    __rsub__ = lambda self, other: self.binary("-", other, True)  # noqa: E731
    __mul__ = lambda self, other: self.binary("*", other)  # noqa: E731
    __rmul__ = lambda self, other: self.binary("*", other, True)  # noqa: E731
    __truediv__ = lambda self, other: self.binary("/", other)  # noqa: E731
    __floordiv__ = lambda self, other: self.binary("//", other)  # noqa: E731
    __rfloordiv__ = lambda self, other: self.binary("//", other, True)  # noqa: E731
    __mod__ = lambda self, other: self.binary("%", other)  # noqa: E731
    __rmod__ = lambda self, other: self.binary("%", other, True)  # noqa: E731
    __xor__ = lambda self, other: self.binary("^", other)  # noqa: E731
    __lshift__ = lambda self, other: self.binary("<<", other)  # noqa: E731
    __rshift__ = lambda self, other: self.binary(">>", other)  # noqa: E731
    __and__ = lambda self, other: self._and(other, "&")  # noqa: E731
    __rand__ = lambda self, other: self._and(other, "&", True)  # noqa: E731
    __or__ = lambda self, other: self._and(other, "|")  # noqa: E731
    __ror__ = lambda self, other: self._and(other, "|", True)  # noqa: E731
    __lt__ = lambda self, other: self.binary("<", other)  # noqa: E731
    __le__ = lambda self, other: self.binary("<=", other)  # noqa: E731
    __gt__ = lambda self, other: self.binary(">", other)  # noqa: E731
    __ge__ = lambda self, other: self.binary(">=", other)  # noqa: E731
    __eq__ = lambda self, other: self.binary("==", other)  # type: ignore[assignment]  # noqa: E731
    __ne__ = lambda self, other: self.binary("!=", other)  # type: ignore[assignment]  # noqa: E731
    __neg__ = lambda self: _Syntax(Unary("-", self.node))  # noqa: E731
    __hash__ = None  # type: ignore[assignment]

    def __invert__(self) -> _Syntax:
        return _Syntax(Unary("not" if self.node.dtype is boolean else "~", self.node))


@pytest.mark.parametrize("rule", [rule.name for rule in rules()])
def test_each_rule_fires_and_is_true(rule: str) -> None:
    machine = Machine()
    with counting_rules() as fired:
        for seed in range(200):
            facts, _, assignments, generator = random_facts(seed)
            expression = instance_of(rule, generator)
            simple = simplified_expression(expression, facts)
            assert simple.dtype is expression.dtype
            for names in assignments[:30]:
                expected, got = machine.value(expression, names), machine.value(simple, names)
                if expected != expected and got != got:
                    continue
                assert bits(got) == bits(expected), (expression, simple)
    assert fired[rule] >= 20
