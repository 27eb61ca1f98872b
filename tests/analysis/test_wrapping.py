"""Sums that may wrap in their type: what conditions on their parts make certain, and no more."""

from __future__ import annotations

import itertools

import pytest

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Expression, Kernel, Variable, constant
from taskc.ir.types import DType, i8, i32, i64
from tests.evaluator import Generator, Machine

SMALL = (-9, -8, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)


def b(operator: str, left: Expression | int, right: Expression | int) -> Expression:
    left = constant(left) if isinstance(left, int) else left
    right = constant(right) if isinstance(right, int) else right
    return Binary(operator, left, right)


def with_parameters(*parameters: Variable) -> Facts:
    return Facts.empty(Kernel("k", parameters, (), 1, ir.Sequence(())))


@pytest.mark.parametrize("dtype", [i8, i32, i64])
def test_what_conditions_make_certain_holds(dtype: DType) -> None:
    """By brute force: at small numbers, and where the type ends."""
    machine = Machine()
    low, high = int(dtype.minimum), int(dtype.maximum)
    values = (*SMALL, low, low + 1, low + 2, low // 2, high // 2, high // 2 + 1, high - 1, high)
    decided = 0
    for seed in range(250):
        x, y = Variable("x", dtype), Variable("y", dtype)
        generator = Generator(seed, [x, y], dtype)
        facts = with_parameters(x, y)
        assumed = [generator.boolean(pick) for pick in (1, 1, 2)]
        for condition in assumed:
            facts = facts.assume(condition)
        allowed = [
            names
            for first, second in itertools.product(values, values)
            for names in ({x: first, y: second},)
            if all(machine.value(condition, names) for condition in assumed)
        ]
        for _ in range(6):
            condition = generator.boolean(2)
            answer = facts.prove(condition)
            if answer is None:
                continue
            decided += 1
            for names in allowed:
                assert bool(machine.value(condition, names)) is answer, (seed, assumed, condition)
    assert decided > 200, decided


def test_a_range_of_a_number_bounds_its_sums() -> None:
    n, i = Variable("n"), Variable("i")
    facts = with_parameters(n, i).assume(b("and", b("<=", 0, i), b("<", i, 32)))
    total = b("+", i, n)
    assert facts.assume(b("<=", n, 4)).prove(b(">=", total, 0)) is None  # n may be very negative
    assert facts.assume(b(">", n, 0)).prove(b(">", total, 0)) is None  # and here, very large
    both = facts.assume(b(">", n, 0)).assume(b("<=", n, 4))
    assert both.prove(b("<", total, 36)) is True
    assert both.prove(b("<", total, 35)) is None
    assert both.prove(b(">", total, 0)) is True
    assert both.prove(b("==", b("-", b("*", total, 3), b("*", i, 3)), b("*", n, 3))) is True


def test_a_size_bounds_them_too() -> None:
    n, i, size = Variable("n"), Variable("i"), Variable("size")
    kernel = Kernel("k", (n, i), (size,), 1, ir.Sequence(()))
    facts = Facts.empty(kernel).assume(b("and", b("<=", 0, i), b("<", i, 32)))
    facts = facts.assume(b(">=", n, 0))
    total = b("+", i, n)
    stated = facts.assume(b("<=", n, b("-", size, 32)))
    assert stated.prove(b("<", total, size)) is True
    assert stated.prove(b("<", total, b("-", size, 1))) is None
    # n + 32 wraps, so this holds for large n.
    assert facts.assume(b("<=", b("+", n, 32), size)).prove(b("<", total, size)) is None


def test_a_sum_of_natural_numbers_that_wraps_is_negative() -> None:
    n, m = Variable("n"), Variable("m")
    facts = with_parameters(n, m).assume(b("<=", 0, n)).assume(b("<=", 0, m))
    total = b("+", n, m)
    assert facts.prove(b("<=", n, total)) is None
    assert facts.assume(b("<=", 0, total)).prove(b("<=", n, total)) is True
    assert facts.assume(b("<", total, 100)).prove(b("<=", n, total)) is None
    thrice = b("+", total, m)  # this comes round to natural numbers
    assert facts.assume(b("<=", 0, thrice)).prove(b("<=", n, thrice)) is None
