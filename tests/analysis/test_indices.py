"""What all workers share of an index, and the array of the rest, add up to the index for each of them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from taskc.analysis.accesses import Values
from taskc.analysis.indices import Evaluator
from taskc.ir.nodes import Binary, Cast, Constant, Expression, Unary, Variable
from taskc.ir.types import DType, i8, i32, i64, u8
from tests.evaluator import Generator, Machine

# Numbers of narrow types wrap.
TRIPS = {i64: range(-2, 6), i32: range(-2, 6), i8: range(-128, 128, 34), u8: range(0, 256, 36)}


@pytest.mark.each_value(2)
@pytest.mark.parametrize("dtype", TRIPS, ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_random_expressions(seed: int, dtype: DType) -> None:
    i, j, row, column = (Variable(name, dtype) for name in ("i", "j", "row", "column"))
    trips, low = TRIPS[dtype], max(int(dtype.minimum), -5)
    names = Values({i: np.array(trips)[:, None], j: np.array(trips)})
    generator = Generator(seed, (i, j, row, column), dtype)
    machine = Machine()
    known = 0
    for _ in range(30):
        node, condition = generator.integer(3), generator.boolean(3)
        index, truth = Evaluator(names).index(node), Evaluator(names).truth(condition)
        known += index is not None
        for r, c in ((0, 0), (7, 2), (low, 16)):
            places = [{i: x, j: y, row: r, column: c} for x, y in product(trips, trips)]
            if index is not None:
                shared = sum(
                    int(machine.value(atom, places[0])) * factor
                    for atom, factor in index.terms.items()
                )
                found = np.broadcast_to(index.base + shared, (len(trips), len(trips))).ravel()
                assert found.tolist() == [machine.value(node, place) for place in places]
            holds = np.array([machine.value(condition, place) for place in places])
            must, may = (
                np.broadcast_to(part, (len(trips), len(trips))).ravel()
                for part in (truth.must, truth.may)
            )
            assert not (must & ~holds).any()
            assert not (holds & ~may).any()
    assert known > 5


TASK, ROW, STEP, WILD = (Variable(name) for name in ("i", "row", "step", "wild"))
NAMES = Values({TASK: np.arange(64)}, frozenset({WILD}))


def binary(operator: str, left: Expression, right: Expression | int) -> Binary:
    return Binary(operator, left, Constant(right, i64) if isinstance(right, int) else right)


def test_quotients_of_what_is_shared_and_what_is_not() -> None:
    mixed = binary("+", binary("*", ROW, 8), TASK)
    index = Evaluator(NAMES).index(binary("//", mixed, 8))
    assert index is not None
    assert index.terms == {ROW: 1}
    assert (index.base == np.arange(64) // 8).all()
    assert Evaluator(NAMES).index(binary("//", mixed, 16)) is None


def test_casts_change_nothing_that_fits() -> None:
    for dtype in (i32, i64):
        index = Evaluator(NAMES).index(Cast(Cast(TASK, dtype), i64))
        assert index is not None
        assert (index.base == np.arange(64)).all()


def test_a_negated_number_wraps() -> None:
    index = Evaluator(NAMES).index(Cast(Unary("-", Cast(TASK, u8)), i64))
    assert index is not None
    assert index.base.tolist() == [-i % 256 for i in range(64)]


def test_what_is_not_known() -> None:
    assert Evaluator(NAMES).index(binary("+", ROW, WILD)) is None
    shared = Evaluator(NAMES).index(binary("%", binary("*", ROW, STEP), 4))
    assert shared is not None
    assert shared.is_uniform
    assert len(shared.terms) == 1


def test_other_values_of_shared_variables() -> None:
    index = Evaluator(NAMES).index(binary("+", binary("*", STEP, 2), TASK))
    assert index is not None
    assert index.substituted({ROW: STEP}) is index
    moved = index.substituted({STEP: ROW})
    assert moved.terms == {ROW: 2}
    assert moved.base is index.base
    assert moved.key != index.key
    assert index.key == index.substituted({STEP: STEP}).key
