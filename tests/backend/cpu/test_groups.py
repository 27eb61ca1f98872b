"""What is used on both sides of a barrier is kept, in loops from one turn to the next as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskc.backend.cpu.values import BarrierGroups, is_pure
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Variable, constant
from taskc.ir.types import i64
from tests.analysis.test_facts import b, loop

X, T = Variable("x"), Variable("t")
Y = ir.Tensor("y", i64, (8,), ir.GLOBAL, role="inout")
BARRIER = ir.Barrier("block", "")
BIND = ir.Let(X, constant(1))


def groups_of(body: Statement) -> BarrierGroups:
    return BarrierGroups(body, vectors=2)


def use(value: Expression = X) -> Statement:
    return ir.Store(Y, (constant(0),), value)


def turns(*body: Statement) -> Statement:
    return replace(loop(T, 0, 4), body=ir.Sequence(body))


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ((BIND, use(), BARRIER), False),
        ((BARRIER, BIND, use()), False),
        ((BIND, BARRIER, use()), True),
        ((BIND, turns(use()), BARRIER), False),
        ((BIND, turns(use(), BARRIER)), True),
        ((BIND, turns(BARRIER), use()), True),
        ((turns(BIND, BARRIER, use()),), True),
        ((turns(BARRIER, BIND, use()),), False),
        ((turns(BIND, use(), BARRIER),), False),
        # What is bound behind a loop's barrier is used in front of it a turn later.
        ((turns(use(), BARRIER, BIND),), True),
        ((BIND, ir.If(b("<", X, 3), BARRIER)), False),
        ((BIND, BARRIER, ir.If(b("<", X, 3), use(constant(2)))), True),
    ],
)
def test_what_is_kept(body: tuple[Statement, ...], is_kept: bool) -> None:
    groups = groups_of(ir.Sequence(body))
    assert groups.is_kept(X) == is_kept


def test_a_loops_variable_is_kept_where_a_barrier_is_in_the_loop() -> None:
    assert groups_of(turns(use(T), BARRIER, use(T))).is_kept(T)
    assert not groups_of(ir.Sequence((turns(use(T)), BARRIER))).is_kept(T)


def test_memory_counts_as_what_is_used() -> None:
    private = ir.Tensor("p", i64, (4,), ir.LOCAL)
    store = ir.Store(private, (constant(0),), constant(1))
    read = use(ir.Read(private, (constant(0),)))
    assert groups_of(ir.Sequence((ir.Allocate(private), store, BARRIER, read))).is_kept(private)
    assert not groups_of(ir.Sequence((ir.Allocate(private), store, read, BARRIER))).is_kept(private)


def test_barriers_are_found_at_any_depth() -> None:
    inner = turns(ir.If(b("<", T, 2), BARRIER))
    groups = groups_of(ir.Sequence((BIND, inner)))
    assert groups.has_barrier(inner)
    assert not groups.has_barrier(BIND)


def test_what_reads_memory_is_not_computed_again() -> None:
    assert is_pure(b("+", X, b("*", T, 4)))
    assert not is_pure(b("+", X, ir.Read(Y, (constant(0),))))


def test_one_vector_keeps_nothing() -> None:
    """It goes on with its registers."""
    assert not BarrierGroups(ir.Sequence((BIND, BARRIER, use())), vectors=1).is_kept(X)
