"""The terms of sums: they add up to the sum."""

from __future__ import annotations

from random import Random

import pytest

from taskc.analysis.prover import addends
from taskc.ir.build import add, multiply, subtract
from taskc.ir.nodes import Binary, Constant, Expression, Variable

A, B, C, NAME = (Variable(name) for name in ("a", "b", "c", "name"))


def value(node: Expression, numbers: dict[Variable, int]) -> int:
    if isinstance(node, Variable):
        return numbers[node]
    if isinstance(node, Constant):
        return int(node.value)
    assert isinstance(node, Binary)
    left, right = value(node.left, numbers), value(node.right, numbers)
    operations = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "//": left // (right or 1),
    }
    return operations[node.operator]


def random_sum(random: Random, depth: int) -> Expression:
    if not depth or random.random() < 0.15:
        return random.choice([A, B, C, NAME, Constant(random.randrange(-3, 4))])
    left, right = random_sum(random, depth - 1), random_sum(random, depth - 1)
    operator = random.choice(["+", "-", "*", "//"] if random.random() < 0.4 else ["+", "-"])
    return Binary(operator, left, right)


@pytest.mark.parametrize("seed", range(20))
def test_random_sums(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        node = random_sum(random, 5)
        numbers = {variable: random.randrange(-50, 50) for variable in (A, B, C, NAME)}
        for opens in (lambda inner: True, lambda inner: False):
            terms = addends(node, opens=opens)
            assert sum(value(term, numbers) * times for term, times in terms) == value(
                node, numbers
            )


def test_products_and_names() -> None:
    inner = add(A, multiply(B, 4))
    node = subtract(multiply(inner, 8), NAME)
    assert addends(node) == [(A, 8), (B, 32), (NAME, -1)]
    assert addends(node, opens=lambda inner: False) == [(inner, 8), (NAME, -1)]
    assert addends(node, {NAME: add(A, C)}) == [(A, 7), (B, 32), (C, -1)]
    assert addends(Binary("%", inner, Constant(3))) == [(Binary("%", inner, Constant(3)), 1)]


def test_what_is_used_again_and_again_is_seen_once() -> None:
    node: Expression = A
    for _ in range(60):
        node = Binary("+", node, node)
    assert addends(node) == [(A, 1 << 60)]
