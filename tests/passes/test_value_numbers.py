"""Equal values have one number, and what may differ has two."""

from __future__ import annotations

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.nodes import Cast, Constant, Unary, Variable
from taskc.ir.types import f32, i8, i32
from taskc.passes.hoist import Numbers
from tests.analysis.test_facts import b
from tests.evaluator import Generator

X, Y = Variable("x"), Variable("x")  # of one name, and two


def test_trees_of_one_shape_have_one_number() -> None:
    numbers = Numbers()
    assert numbers.of(b("+", b("*", X, 2), Y)) == numbers.of(b("+", b("*", X, 2), Y))
    assert numbers.of(b("+", X, Y)) != numbers.of(b("+", Y, X))
    assert numbers.of(b("//", X, 2)) != numbers.of(b("%", X, 2))
    assert numbers.of(X) != numbers.of(Y)


def test_random_trees() -> None:
    """Made twice from the same seed they have one number; other trees have another."""
    numbers = Numbers()
    found: dict[int, str] = {}
    for seed in range(200):
        one, again = (Generator(seed, [X]).integer(3) for _ in range(2))
        assert numbers.of(one) == numbers.of(again)
        assert found.setdefault(numbers.of(one), repr(one)) == repr(one)
    assert len(found) > 100


def test_constants_are_compared_by_their_bits() -> None:
    numbers = Numbers()
    zeros = [Constant(0.0, f32), Constant(-0.0, f32), Constant(0, i32), Constant(0, i8)]
    assert len({numbers.of(zero) for zero in zeros}) == 4
    nan = float("nan")
    assert numbers.of(Constant(nan, f32)) == numbers.of(Constant(nan, f32))


def test_casts_and_operators_are_told_apart_by_their_types() -> None:
    numbers = Numbers()
    assert numbers.of(Cast(X, i32)) == numbers.of(Cast(X, i32)) != numbers.of(Cast(X, i8))
    assert numbers.of(Unary("-", X)) != numbers.of(Unary("~", X))


def test_memory_that_may_change_is_equal_to_itself_only() -> None:
    numbers = Numbers()
    steady = ir.Tensor("s", f32, (4,), ir.GLOBAL)
    written = ir.Tensor("s", f32, (4,), ir.GLOBAL, role="inout")
    assert numbers.of(ir.Read(steady, (X,))) == numbers.of(ir.Read(steady, (X,)))
    assert numbers.of(ir.Read(steady, (X,))) != numbers.of(ir.Read(steady, (Y,)))
    one, other = ir.Read(written, (X,)), ir.Read(written, (X,))
    assert numbers.of(one) == numbers.of(one) != numbers.of(other)


def test_tables_are_told_apart() -> None:
    numbers = Numbers()
    tables = [ir.Table("t", np.arange(4)) for _ in range(2)]
    looked_up = [numbers.of(ir.Lookup(table, X)) for table in (*tables, tables[0])]
    assert looked_up[0] == looked_up[2] != looked_up[1]
