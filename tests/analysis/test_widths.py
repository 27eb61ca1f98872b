"""How wide an access may be: what is found is aligned and consecutive, held to every index."""

from __future__ import annotations

import random
from itertools import product

import pytest

from taskc.analysis.coalescing import contiguous_width, divisor, steady_width, unit_stride
from taskc.analysis.facts import Facts
from taskc.ir.nodes import Expression, Variable
from tests.analysis.test_facts import b, loop
from tests.evaluator import Machine

E, R, Q = Variable("e"), Variable("r"), Variable("q")
LIMIT, TURNS = 8, 3
RANGES = {E: range(LIMIT * TURNS), R: range(0, 16, 4), Q: range(5)}


def known() -> Facts:
    facts = Facts.empty()
    for variable, values in RANGES.items():
        facts = facts.enter(loop(variable, values.start, values.stop, values.step))
    return facts


def random_index(pick: random.Random) -> Expression:
    along = b(pick.choice("+-") if pick.random() < 0.1 else "+", pick.choice([R, Q, 0, 8, 4, 3]), E)
    kind = pick.randrange(5)
    if kind == 0:
        return b("*", pick.choice([R, Q]), pick.choice([2, 4, 8]))
    if kind == 1:
        return b("%", along, pick.choice([2, 4, 8, 12]))
    if kind == 2:
        return b("//", along, pick.choice([2, 4, 8]))
    if kind == 3:
        return b("+", b("*", Q, pick.choice([4, 8, 24])), along)
    return along


def offsets(indices: tuple[Expression, ...], shape: tuple[int, ...], r: int, q: int) -> list[int]:
    machine, found = Machine(), []
    for e in RANGES[E]:
        offset = 0
        for index, extent in zip(indices, shape, strict=True):
            offset = offset * extent + machine.value(index, {E: e, R: r, Q: q})
        found.append(offset)
    return found


def test_the_elements_of_a_vector_are_consecutive_and_aligned() -> None:
    pick, facts = random.Random(7), known()
    found = {1: 0, 2: 0, 4: 0, 8: 0}
    for _ in range(400):
        indices = tuple(random_index(pick) for _ in range(pick.choice([1, 1, 2])))
        shape = tuple(pick.choice([64, 24, 10]) for _ in indices)
        width = contiguous_width(indices, shape, E, LIMIT, facts)
        if width == 0:
            continue
        found[width] += 1
        for r, q in product(RANGES[R], RANGES[Q]):
            places = offsets(indices, shape, r, q)
            for start in range(0, len(places), width):
                first = places[start]
                assert width == 1 or first % width == 0, (indices, shape)
                assert places[start : start + width] == list(range(first, first + width))
    assert min(found.values()) >= 10


def test_what_stays_in_a_vector_stays() -> None:
    pick, facts, machine = random.Random(9), known(), Machine()
    found = set()
    for _ in range(200):
        index = random_index(pick)
        width = steady_width(index, E, LIMIT, facts)
        found.add(width)
        for r, q in product(RANGES[R], RANGES[Q]):
            values = [machine.value(index, {E: e, R: r, Q: q}) for e in RANGES[E]]
            for start in range(0, len(values), width):
                assert len(set(values[start : start + width])) == 1
    assert found == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("index", "is_unit"),
    [
        (E, True),
        (b("+", b("*", Q, 3), E), True),
        (b("*", E, 2), False),
        (b("-", Q, E), False),
        (b("+", E, b("//", E, 4)), False),
        (b("-", b("*", E, 2), E), True),
        (Q, False),
    ],
)
def test_unit_strides(index: Expression, is_unit: bool) -> None:
    assert unit_stride(index, E, known()) is is_unit


def test_divisors() -> None:
    facts = known()
    assert (divisor(-12, facts), divisor(0, facts)) == (12, 0)
    assert divisor(b("+", b("*", Q, 8), R), facts) == 4
    assert divisor(b("*", E, 6), facts) == 6
    assert divisor(b("-", R, R), facts) == 0
