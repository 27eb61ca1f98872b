"""Each read of an expression comes with the conditions under which it happens; and what names stand for."""

from __future__ import annotations

import pytest

from taskc.analysis.touches import reads, reads_memory, seen_through
from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Expression, Select, Unary, Variable, constant
from taskc.ir.printer import expression_text
from taskc.ir.types import i64
from tests.analysis.test_facts import b
from tests.evaluator import Machine

X = ir.Tensor("x", i64, (4,), ir.GLOBAL)
Y = ir.Tensor("y", i64, (4,), ir.GLOBAL)
I = Variable("i")  # noqa: E741
N = Variable("n")


def x(index: Expression | int) -> ir.Read:
    return ir.Read(X, (constant(index) if isinstance(index, int) else index,))


def y(index: Expression | int) -> ir.Read:
    return ir.Read(Y, (constant(index) if isinstance(index, int) else index,))


def assume(
    known: tuple[tuple[Expression, bool], ...], condition: Expression, holds: bool
) -> tuple[tuple[Expression, bool], ...]:
    return (*known, (condition, holds))


SMALL, POSITIVE = b("<", I, N), b(">", I, 0)
EXPRESSIONS = [
    x(y(I)),
    Select(SMALL, x(0), y(1)),
    Select(b(">", x(0), 0), x(1), Select(SMALL, y(2), y(3))),
    Select(Binary("and", SMALL, b(">", x(I), 0)), y(I), x(3)),
    Select(Binary("or", SMALL, b(">", x(1), 0)), y(2), x(3)),
    b(
        "+",
        Select(Unary("not", Binary("or", POSITIVE, b("<", x(0), 1))), x(y(2)), constant(5)),
        y(3),
    ),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=expression_text)
def test_a_read_happens_just_where_its_conditions_hold(expression: Expression) -> None:
    found = list(reads(expression, (), assume))
    for contents in ((0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 2, 0), (0, 3, 0, 1)):
        for i in range(3):
            machine = Machine()
            machine.memory = {(t, place): n for t in (X, Y) for place, n in enumerate(contents)}
            names = {I: i, N: 1}
            machine.value(expression, names)
            happened, machine.touched = machine.touched, []
            expected = []
            for read, known in found:
                machine.touched = []
                if all(machine.value(condition, names) is holds for condition, holds in known):
                    machine.touched = []
                    machine.value(read, names)
                    expected.append(machine.touched[-1])
            assert expected == happened


def test_an_address_counts_as_a_read_and_its_index_comes_first() -> None:
    address = ir.Address(X, (y(1),))
    assert [node for node, _ in reads(address, (), assume)] == [address.indices[0], address]


def test_names_are_seen_through_once() -> None:
    name, place = Variable("name"), Variable("place")
    names = {name: Binary("*", x(place), N), place: Binary("+", N, name)}
    found = seen_through([Binary("+", name, name)], names)
    assert [part for part in found if isinstance(part, Variable)] == [name, place, N]
    assert not reads_memory(Binary("+", name, name))
    assert reads_memory(names[name])
