"""Which neighbouring elements the lanes of a vector loop access, and under which conditions they are loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskc.backend.cuda.statements import LaneWindow, LaneWindows
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable
from taskc.ir.nodes import Expression, Select, Statement, Variable, constant
from taskc.ir.printer import expression_text
from taskc.ir.types import i64
from tests.analysis.test_facts import b, loop

S, BASE, N = Variable("s"), Variable("base"), Variable("n")
X = ir.Tensor("x", i64, (64,), ir.GLOBAL)
Y = ir.Tensor("y", i64, (64,), ir.GLOBAL, role="inout")
OWN = ir.Tensor("r", i64, (64,), ir.REGISTER)
AT = b("+", BASE, S)
NEXT = b("+", AT, 4)


def x(index: Expression = AT) -> ir.Read:
    return ir.Read(X, (index,))


def store(value: Expression, index: Expression = AT) -> ir.Store:
    return ir.Store(Y, (index,), value)


def windows(*body: Statement) -> LaneWindows:
    whole = body[0] if len(body) == 1 else ir.Sequence(body)
    return LaneWindows(replace(loop(S, 0, 4), body=whole, kind="vector"), SymbolTable())


def shown(window: LaneWindow) -> tuple[str, str, bool, bool, str]:
    condition = "" if window.condition is None else expression_text(window.condition)
    place = expression_text(window.place)
    return window.tensor.name, place, window.is_loaded, window.is_stored, condition


def test_what_is_read_twice_is_loaded_once() -> None:
    again = b("+", S, BASE)
    found = windows(store(b("*", b("+", x(), x(again)), x(NEXT))))
    assert [shown(window) for window in found.found] == [
        ("x", "base", True, False, ""),
        ("x", "base + 4", True, False, ""),
        ("y", "base", False, True, ""),
    ]


def test_what_all_lanes_read_and_registers_are_no_vectors() -> None:
    value = b("+", x(BASE), b("+", ir.Read(OWN, (AT,)), x(b("//", S, 4))))
    alone = ir.Tensor("alone", i64, (), ir.GLOBAL)
    found = windows(store(b("+", value, ir.Read(alone, ()))))
    assert [window.tensor for window in found.found] == [Y]


def test_an_element_may_be_that_of_several_lanes() -> None:
    found = windows(store(x(b("//", b("+", b("*", BASE, 4), S), 2))))
    assert [(window.tensor, window.share) for window in found.found] == [(X, 2), (Y, 1)]
    assert shown(found.found[0])[1] == "base * 4 // 2"


def test_names_are_seen_through() -> None:
    place = Variable("place")
    found = windows(ir.Let(place, b("+", b("*", BASE, 8), S)), store(x(place), place))
    assert [shown(window)[:2] for window in found.found] == [("x", "base * 8"), ("y", "base * 8")]


@pytest.mark.parametrize(
    ("value", "condition"),
    [
        (Select(b("<", BASE, N), x(), constant(0)), "base < n"),
        (Select(b("<", BASE, N), constant(0), x()), "not base < n"),
        (Select(b("<", b("+", BASE, S), N), x(), constant(0)), "base + 0 < n"),
        (
            Select(b("<", BASE, N), Select(b(">", BASE, 0), x(), constant(0)), constant(1)),
            "base < n and base > 0",
        ),
        (Select(b("<", BASE, N), x(), b("+", x(), 1)), "base < n or not base < n"),
        (b("+", Select(b("<", BASE, N), x(), constant(0)), x()), ""),
    ],
)
def test_a_window_is_loaded_where_any_of_its_reads_happens(
    value: Expression, condition: str
) -> None:
    (window,) = [window for window in windows(store(value)).found if window.tensor is X]
    assert shown(window) == ("x", "base", True, False, condition)


def test_what_was_stored_is_not_loaded() -> None:
    read = ir.Read(Y, (AT,))
    stored_first = windows(store(x()), store(b("+", read, 1)))
    assert [shown(w)[2:4] for w in stored_first.found if w.tensor is Y] == [(False, True)]
    read_first = windows(store(b("+", read, 1)), store(b("*", read, 2)))
    assert [shown(w)[2:4] for w in read_first.found if w.tensor is Y] == [(True, True)]


def test_each_access_finds_its_window() -> None:
    read, other, target = x(), x(NEXT), store(constant(1))
    found = windows(store(b("+", read, other), NEXT), target)
    assert found.of[id(read)] is not found.of[id(other)]
    assert found.of[id(target)].is_stored


def test_what_is_no_store_is_not_expected() -> None:
    with pytest.raises(InternalError, match="Barrier in a vector loop"):
        windows(ir.Barrier("block", ""))
