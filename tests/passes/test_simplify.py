"""Simplification never changes a value, fires every rule, and reaches the forms that it should."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.nodes import (
    Binary,
    Cast,
    Constant,
    Expression,
    For,
    Select,
    Unary,
    Variable,
    constant,
)
from taskc.ir.printer import expression_text, to_text
from taskc.ir.types import boolean, f32, i32, i64
from taskc.passes.simplify import simplified_expression, simplify
from taskc.passes.simplify_rules import counting_rules, rules
from tests.analysis.test_facts import b, loop, random_facts
from tests.evaluator import Generator, Machine
from tests.programs_of_loops import arguments_for, random_kernel, run_kernel


def bits(value: Any) -> Any:
    return struct.pack("d", value) if isinstance(value, float) else value


@pytest.mark.parametrize("block", range(4))
def test_values_stay(block: int) -> None:
    """Integer, boolean and float expressions, under facts, for every assignment."""
    machine = Machine()
    for seed in range(block * 400, block * 400 + 400):
        facts, _, assignments, generator = random_facts(seed)
        for kind in (generator.integer, generator.boolean, generator.float):
            expression = kind(4)
            simple = simplified_expression(expression, facts)
            assert simple.dtype is expression.dtype
            for names in assignments[:60]:
                expected, got = machine.value(expression, names), machine.value(simple, names)
                if expected != expected and got != got:
                    continue
                assert bits(got) == bits(expected), (seed, expression, simple)


def test_narrow_values_stay() -> None:
    ends = [-(2**31), -7, -1, 0, 1, 8, 2**31 - 1]
    machine = Machine()
    x, y = Variable("x", i32), Variable("y", i32)
    for seed in range(600):
        generator = Generator(seed, [x, y], i32)
        for expression in (generator.integer(4), generator.boolean(3)):
            simple = simplified_expression(expression, Facts.empty())
            for first in ends:
                for second in ends:
                    names = {x: first, y: second}
                    assert machine.value(simple, names) == machine.value(expression, names), (
                        seed, expression, simple,
                    )  # fmt: skip


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


@pytest.mark.parametrize("block", range(4))
def test_programs_keep_their_results(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        kernel, sizes = random_kernel(seed)
        simple = simplify(kernel)
        again = simplify(simple)
        arguments = arguments_for(kernel)
        expected = run_kernel(kernel, arguments, sizes)
        assert run_kernel(simple, arguments, sizes) == expected, seed
        assert run_kernel(again, arguments, sizes) == expected, seed


def test_nothing_to_do_gives_the_same_object() -> None:
    for seed in range(30):
        kernel, _ = random_kernel(seed)
        for _ in range(4):
            kernel = simplify(kernel)
        assert simplify(kernel) is kernel, seed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lambda x, w: b("//", b("+", b("*", x, 8), 4), 4), "x * 2 + 1"),
        (lambda x, w: b("%", b("+", b("*", x, 32), w), 32), "w"),
        (lambda x, w: b("//", b("+", b("*", x, 32), w), 32), "x"),
        (lambda x, w: b("//", b("+", b("*", w, 4), 3), 8), "w // 2"),
        (lambda x, w: b("+", b("*", b("//", x, 8), 8), b("%", x, 8)), "x"),
        (lambda x, w: b("+", b("*", b("//", x, 56), 7), b("%", b("//", x, 8), 7)), "x // 8"),
        (lambda x, w: b("//", b("//", x, 4), 8), "x // 32"),
        (lambda x, w: b("%", b("%", x, 32), 8), "x % 8"),
        (lambda x, w: b("//", b("%", x, 32), 8), "x % 32 // 8"),
        (lambda x, w: b("<", b("*", x, 4), 18), "x < 5"),
        (lambda x, w: b("<", b("+", x, w), b("+", x, 32)), "True"),
        (lambda x, w: b("<", b("+", x, w), b("+", w, 3)), "x < 3"),
        (lambda x, w: b("==", b("+", b("*", x, 4), 1), b("*", w, 2)), "False"),
        (lambda x, w: b("and", b("<", x, 8), b("<", x, 10)), "x < 8"),
        (lambda x, w: Select(b("<", x, 8), b("min", x, 9), w), "select(x < 8, x, w)"),
        (lambda x, w: Cast(Cast(Variable("s", i32), i64), i32), "s"),
        (lambda x, w: b("min", w, 40), "w"),
        (lambda x, w: b("//", x, 0), "x // 0"),
    ],
)  # fmt: skip
def test_forms(text: Any, expected: str) -> None:
    x, w = Variable("x"), Variable("w")
    facts = Facts.empty().enter(loop(w, 0, 32))
    assert expression_text(simplified_expression(text(x, w), facts)) == expected


def test_floats_are_left_alone() -> None:
    x = Variable("x", f32)
    zero, minus_zero = Constant(0.0, f32), Constant(-0.0, f32)
    for node in (
        Binary("+", x, zero), Binary("-", x, x), Binary("*", x, zero), Binary("==", x, x),
        Binary("+", Binary("+", x, Constant(1.0, f32)), Constant(2.0, f32)),
        Unary("not", Binary("<", x, zero)), Binary("-", zero, x), Binary("+", minus_zero, x),
        Unary("exp", Constant(1.0, f32)), Binary("/", zero, zero),
    ):  # fmt: skip
        assert simplified_expression(node, Facts.empty()) is node


def test_a_loop_and_its_conditions(golden: Any) -> None:
    """The example of the pass: one iteration, a decided condition, a loop without iterations."""
    n, i, j, q, t = (Variable(name) for name in "nijqt")
    y = ir.Tensor("y", f32, (64,), ir.GLOBAL, role="inout")
    unread = ir.Tensor("unread", f32, (4,), ir.LOCAL)
    one = Constant(1.0, f32)
    inner = ir.If(b("<", q, 8), ir.Store(y, (b("+", b("*", q, 8), t),), one))
    body = ir.Sequence(
        (
            ir.Allocate(unread),
            ir.Let(t, b("*", i, 4)),
            inner,
            ir.Store(unread, (constant(0),), one),
            For(j, n, n, 1, ir.Store(y, (j,), one)),
            ir.If(b(">=", q, 8), ir.Store(y, (constant(0),), one)),
        )
    )
    kernel = ir.Kernel(
        "k", (y,), (n,), 1, For(q, constant(0), constant(8), 1, loop_of(i, 1, body)), "scalar"
    )
    simple = simplify(kernel)
    golden("passes/simplify_loop", to_text(simple))
    assert simplify(simple) is simple


def loop_of(variable: Variable, count: int, body: ir.Statement) -> For:
    return replace(loop(variable, 0, count), body=body)
