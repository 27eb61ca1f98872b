"""How long loops are, and how much code a statement is once they are unrolled."""

from __future__ import annotations

import random
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.code_size import CodeSizes, length, trip_count
from taskc.ir.nodes import Variable, constant
from taskc.ir.types import i64
from tests.analysis.test_facts import loop

X = Variable("x")
Y = ir.Tensor("y", i64, (8,), ir.GLOBAL, role="inout")
STORE = ir.Store(Y, (constant(0),), constant(1))


def unrolled(trips: int, body: ir.Statement) -> ir.For:
    return replace(loop(Variable("i"), 0, trips), body=body, kind="unroll")


def test_a_length_is_what_len_says_and_goes_on_where_it_ends() -> None:
    pick = random.Random(3)
    for _ in range(500):
        values = range(pick.randint(-9, 9), pick.randint(-9, 9), pick.choice([-4, -1, 1, 2, 5]))
        assert length(values) == len(values)
    assert length(range(-(1 << 63), 1 << 63)) == 1 << 64
    assert length(range(1 << 63, 0, -(1 << 62))) == 2


def test_trips_are_known_of_constant_bounds() -> None:
    assert trip_count(loop(X, 3, 10, 4)) == 2
    assert trip_count(loop(X, 3, 3)) == 0
    assert trip_count(loop(X, 0, Variable("n"))) is None
    assert trip_count(replace(loop(X, 0, 4), start=Variable("n"))) is None


def test_loops_that_stay_loops_have_no_size() -> None:
    sizes = CodeSizes()
    pair = ir.Sequence((STORE, STORE))
    assert sizes.of(STORE) == 1
    assert sizes.of(pair) == 3
    assert sizes.of(unrolled(4, pair)) == 12
    assert sizes.of(unrolled(2, unrolled(3, STORE))) == 6
    assert sizes.of(unrolled(0, pair)) == 0
    for stays in (
        replace(loop(X, 0, 4), body=STORE),  # serial
        ir.While(ir.Constant(True, ir.Binary("<", X, X).dtype), STORE),
        replace(unrolled(4, STORE), stop=Variable("n")),
    ):
        assert sizes.of(stays) is None
        assert sizes.of(ir.Sequence((STORE, stays))) is None
        assert sizes.of(unrolled(2, stays)) is None
