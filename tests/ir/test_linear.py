"""Linear forms are computed on as their values are, and written out they are the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from taskc.ir.linear import ZERO, Affine, Opaque, balanced_sum, factors_of, is_wide_product
from taskc.ir.nodes import Binary, Expression, Variable, constant
from tests.evaluator import Machine

ATOMS = [Variable(name) for name in "xyz"]
X, Y, Z = ATOMS


def form(pick: random.Random) -> Affine:
    terms = {atom: pick.choice([-8, -2, -1, 1, 2, 6]) for atom in ATOMS if pick.random() < 0.6}
    return Affine(pick.randint(-9, 9), terms, 1 << 40)


def value(of: Affine, names: dict[Variable, int]) -> int:
    return of.constant + sum(factor * names[atom] for atom, factor in of.terms.items())  # type: ignore[index]


@pytest.mark.parametrize(
    ("of_forms", "of_numbers"),
    [
        (lambda a, b: a + b, lambda x, y, number: x + y),
        (lambda a, b: a - b, lambda x, y, number: x - y),
        (lambda a, b: a + b.constant, lambda x, y, number: x + number),
        (lambda a, b: a - b.constant, lambda x, y, number: x - number),
        (lambda a, b: -a, lambda x, y, number: -x),
        (lambda a, b: a.scaled(b.constant), lambda x, y, number: x * number),
        (lambda a, b: a.scaled(6).quotient(3), lambda x, y, number: 2 * x),
    ],
)
def test_arithmetic(
    of_forms: Callable[[Affine, Affine], Affine], of_numbers: Callable[[int, int, int], int]
) -> None:
    pick = random.Random(2)
    for _ in range(200):
        a, b = form(pick), form(pick)
        names = {atom: pick.randint(-5, 5) for atom in ATOMS}
        found = of_forms(a, b)
        assert all(found.terms.values())
        assert value(found, names) == of_numbers(value(a, names), value(b, names), b.constant)


def test_forms_written_out_mean_the_same() -> None:
    pick, machine = random.Random(4), Machine()
    for _ in range(300):
        of = form(pick)
        names = {atom: pick.randint(-5, 5) for atom in ATOMS}
        assert machine.value(of.to_expression(), names) == value(of, names)


def test_parts_of_a_form() -> None:
    of = Affine(5, {X: 6, Y: -4}, 100)
    assert (of.coefficient(X), of.coefficient(Z), of.content()) == (6, 0, 2)
    assert of.without(Y) == Affine(5, {X: 6}, 100)
    assert of.replacing(X, Affine(1, {Z: 2}, 8)) == Affine(11, {Y: -4, Z: 12}, 100)
    assert (of - of).is_constant
    assert of - of == ZERO
    assert hash(of) == hash(Affine(5, {Y: -4, X: 6}, 1))  # in any order


def depth(expression: Expression) -> int:
    if not isinstance(expression, Binary):
        return 0
    return 1 + max(depth(expression.left), depth(expression.right))


@pytest.mark.parametrize("count", [1, 3, 8, 9, 1000])
def test_long_sums_are_shallow(count: int) -> None:
    terms = [constant(n) for n in range(count)]
    made = balanced_sum(terms)
    assert Machine().value(made, {}) == sum(range(count))
    assert depth(made) <= 18


def test_atoms_are_equal_by_their_structure() -> None:
    half = Binary("//", X, constant(2))
    one, again = (Opaque("//", (X, 2), half) for _ in range(2))
    assert one == again
    assert hash(one) == hash(again)
    assert one != Opaque("//", (Y, 2), half)
    assert one != Opaque("%", (X, 2), half)
    assert one != X
    nested, twin = (Opaque("+", (part, part), half) for part in (one, again))
    assert nested == twin
    assert nested.weight == 1 + 2 * one.weight


def test_products_have_factors() -> None:
    square = Opaque("*", (frozenset({(X, 2), (Y, 1)}),), X)
    assert factors_of(square) == {X: 2, Y: 1}
    assert factors_of(X) == {X: 1}
    wide = Affine(1, {X: 1, Y: 1, Z: 1}, 0)
    assert not is_wide_product(wide, wide)
    assert is_wide_product(wide, Affine(1, dict.fromkeys(map(Variable, "abcd"), 1), 0))
