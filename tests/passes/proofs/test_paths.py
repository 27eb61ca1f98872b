"""What a condition says of its parts."""

from __future__ import annotations

from itertools import product

import pytest

from taskc.ir.nodes import Binary, Expression, Unary, Variable
from taskc.ir.types import boolean
from taskc.passes.proofs.accesses import conjuncts
from tests.evaluator import Machine

P, Q, R = (Variable(name, boolean) for name in "pqr")
NAMED = Variable("named", boolean)


def both(left: Expression, right: Expression) -> Expression:
    return Binary("and", left, right)


def either(left: Expression, right: Expression) -> Expression:
    return Binary("or", left, right)


def no(condition: Expression) -> Expression:
    return Unary("not", condition)


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize(
    "condition",
    [
        P,
        both(P, Q),
        either(P, Q),
        no(either(P, no(Q))),
        both(either(P, Q), no(R)),
        no(both(both(P, Q), either(Q, R))),
    ],
    ids=str,
)
def test_a_condition_holds_just_where_all_its_conjuncts_do(
    condition: Expression, holds: bool
) -> None:
    machine, parts = Machine(), list(conjuncts(condition, holds))
    for values in product((True, False), repeat=3):
        names = dict(zip((P, Q, R), values, strict=True))
        all_of_them = all(machine.value(part, names) is wanted for part, wanted in parts)
        assert all_of_them == (machine.value(condition, names) is holds)


def test_conjuncts_are_taken_apart() -> None:
    assert list(conjuncts(both(P, no(either(Q, R))), True)) == [(P, True), (Q, False), (R, False)]
    assert list(conjuncts(either(P, Q), True)) == [(either(P, Q), True)]


def test_names_are_seen_through_once() -> None:
    shared = {NAMED: both(P, Q)}
    assert list(conjuncts(both(NAMED, both(NAMED, R)), True, shared)) == [
        (P, True),
        (Q, True),
        (R, True),
    ]
