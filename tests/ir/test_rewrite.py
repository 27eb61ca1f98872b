"""Rebuilding programs: what doesn't change is the same object, and what does changes everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.compare import program_difference
from taskc.ir.nodes import Binary, Variable, constant
from taskc.ir.rewrite import (
    all_below,
    copy,
    expressions,
    index_leading,
    located,
    map_children,
    map_expressions,
    map_statements,
    operands_first,
    replace_tensors,
    sequence,
    statements,
    substitute,
    tensors_of,
    walk,
    walk_statements,
)
from taskc.ir.types import f32, i64
from tests.analysis.test_facts import b
from tests.ir.stage_programs import PROGRAMS, pipelined

X, Y, Z = (Variable(name) for name in "xyz")
IN = ir.Tensor("a", i64, (8,), ir.GLOBAL)
OUT = ir.Tensor("c", i64, (8,), ir.GLOBAL, role="inout")


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_does_not_change_is_the_same_object(program: Any) -> None:
    body = program().body
    for node in walk(body):
        assert map_children(node, lambda child: child) is node
        assert map_expressions(node, lambda child: child) is node
    assert map_statements(body, lambda child: child) is body
    assert substitute(body, {Variable("nobody"): X}) is body
    assert replace_tensors(body, {IN: OUT}) is body
    assert index_leading(body, {IN: OUT}, X) is body


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_walk_comes_to_each_node_before_those_below(program: Any) -> None:
    body = program().body
    come_to: set[int] = {id(body)}
    for node in walk(body):
        assert id(node) in come_to
        come_to |= {id(below) for below in (*expressions(node), *statements(node))}
    kinds = ir.Statement.__args__
    assert [n for n in walk(body) if isinstance(n, kinds)] == [*walk_statements(body)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_tensor_is_replaced_wherever_it_is(program: Any) -> None:
    kernel = program()
    used = {tensor for node in walk(kernel.body) for tensor in tensors_of(node)}
    others = {tensor: replace(tensor) for tensor in used}
    again = replace_tensors(kernel.body, others)
    found = {tensor for node in walk(again) for tensor in tensors_of(node)}
    assert not found & used
    assert found <= set(others.values())


# Rings name memory that is allocated around what is copied: `pipelined` as a whole has it within.
@pytest.mark.parametrize("program", [one for one in PROGRAMS if one is not pipelined])
def test_a_copy_is_the_same_program(program: Any) -> None:
    kernel = program()
    assert program_difference(kernel, replace(kernel, body=copy(kernel.body))) is None


def test_variables_are_substituted_wherever_they_are_used() -> None:
    store = ir.Store(OUT, (b("+", X, Y),), ir.Read(IN, (X,)))
    made = substitute(store, {X: b("*", Z, 2), Y: X})
    place = b("*", Z, 2)
    assert made == ir.Store(OUT, (b("+", place, X),), ir.Read(IN, (place,)))
    assert substitute(X, {X: Y, Y: Z}) is Y  # at once, and not again


def test_a_shared_part_is_rebuilt_once() -> None:
    total = b("+", X, 1)
    for _ in range(40):
        total = Binary("*", total, total)
    made = substitute(total, {X: Y})
    assert isinstance(made, Binary)
    assert made.left is made.right
    assert len(operands_first(made)) == 43


def test_operands_come_before_what_is_made_of_them() -> None:
    shared = b("+", X, Y)
    whole = b("*", shared, b("-", shared, Z))
    order = operands_first(whole)
    assert len({id(node) for node in order}) == len(order)
    assert order[-1] is whole
    for number, node in enumerate(order):
        assert all(any(part is one for one in order[:number]) for part in expressions(node))


def test_a_copy_with_values_for_free_variables() -> None:
    let = ir.Let(X, b("+", Y, 1))
    body = ir.Sequence((let, ir.Store(OUT, (X,), Y)))
    made = copy(body, {Y: constant(3)})
    assert isinstance(made, ir.Sequence)
    bound, store = made.statements
    assert isinstance(bound, ir.Let)
    assert isinstance(store, ir.Store)
    assert bound.variable is not X
    assert store.indices == (bound.variable,)
    assert (bound.value, store.value) == (b("+", constant(3), 1), constant(3))


def test_sequences_are_spliced() -> None:
    one, other = ir.Store(OUT, (X,), Y), ir.Store(OUT, (Y,), X)
    assert sequence(one) is one
    assert sequence(None, one, None) is one
    assert sequence() == ir.Sequence(())
    assert sequence(ir.Sequence((one, other)), None, one) == ir.Sequence((one, other, one))


def test_nodes_without_a_location_get_one() -> None:
    here, elsewhere = (Location("kernel.py", line, 1, line, 2) for line in (1, 2))
    body = ir.Store(OUT, (Binary("+", X, constant(1), loc=elsewhere),), ir.Read(IN, (X,)))
    now = located(body, here)
    assert now == body
    assert isinstance(now, ir.Store)
    assert (now.loc, now.value.loc) == (here, here)
    assert now.indices[0].loc == elsewhere
    assert now.value.indices[0] is X  # type: ignore[union-attr]
    assert located(now, elsewhere) is now


def test_accesses_go_to_one_slot_of_a_ring() -> None:
    block = ir.Tensor("s", f32, (8, 4), ir.SHARED)
    ring = ir.Tensor("s", f32, (3, 8, 4), ir.SHARED)
    total = ir.Tensor("t", f32, (8, 8), ir.TILE)
    other = ir.Tensor("o", f32, (4, 8), ir.SHARED)
    read = ir.Read(block, (X, Y))
    assert index_leading(read, {block: ring}, Z) == ir.Read(ring, (Z, X, Y))
    store = index_leading(ir.Store(block, (X, Y), read), {block: ring}, Z)
    assert store == ir.Store(ring, (Z, X, Y), ir.Read(ring, (Z, X, Y)))
    corner = (constant(0), constant(0))
    product = ir.Mma(total, ir.Operand(block, corner, (8, 4)), ir.Operand(other, corner, (4, 8)))
    made = index_leading(product, {block: ring}, Z)
    assert isinstance(made, ir.Mma)
    assert made.left == ir.Operand(ring, (Z, *corner), (8, 4))
    assert made.right == product.right


@pytest.mark.parametrize("program", PROGRAMS)
def test_statements_by_kind(program: Any) -> None:
    """Of bodies that are surveyed by turns, and more of them than are kept."""
    bodies = [program().body for _ in range(6)]
    for body in (*bodies, *bodies):
        every = [*walk_statements(body)]
        for kind in {*map(type, every), ir.Roles, ir.Print}:
            found = all_below(body, kind)
            assert [*map(id, found)] == [id(node) for node in every if type(node) is kind]
