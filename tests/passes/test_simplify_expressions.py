"""Simplified expressions: their values stay, and their forms are short."""

from __future__ import annotations

from typing import Any

import pytest

from taskc.analysis.facts import Facts
from taskc.ir.nodes import (
    Binary,
    Cast,
    Constant,
    Select,
    Unary,
    Variable,
)
from taskc.ir.printer import expression_text
from taskc.ir.types import f32, i32, i64
from taskc.passes.simplify import simplified_expression
from tests.analysis.test_facts import b, loop, random_facts
from tests.evaluator import Generator, Machine
from tests.passes.test_simplify import bits


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
