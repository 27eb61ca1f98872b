"""Registered operators: one builder for each version, unless a later one is asked to take its place."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError
from taskc.operators import call as operators
from taskc.operators.call import Builder, operator, registered
from taskc.operators.files import FILES
from tests.onnx.models import model, node, tensor

X = np.array([1, -2, 3], np.float32)


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in {*FILES.values()}:  # all register before the table is exchanged
        importlib.import_module(f"taskc.operators.{file}")
    monkeypatch.setattr(operators, "_builders", {**operators._builders})


def times(factor: int) -> Builder:
    return lambda call: tc.compute((3,), lambda i: call.inputs[0][i] * factor)


def run(name: str, domain: str = "", version: int = 20) -> list[float]:
    """The results of a model with one node."""
    proto = model([node(name, ["x"], ["y"], domain=domain)], [tensor("x", 3)], ["y"])
    del proto.opset_import[:]
    for of in {"", domain}:
        entry = proto.opset_import.add()
        entry.domain, entry.version = of, version
    results: list[float] = tc.compile(proto)(X).tolist()
    return results


CELL = """
@operator("Own", domain="own")
def own(call):
    return tc.op.Mul(call.tensor(0), {factor})
"""


def cell(factor: int, names: dict[str, Any]) -> None:
    """Run a notebook's cell, whose functions are at the top of one module."""
    exec(CELL.format(factor=factor), names)


def test_a_cell_that_runs_again_replaces_its_operator() -> None:
    names = {"operator": operator, "tc": tc, "__name__": "__main__"}
    before = registered()
    cell(2, names)
    assert run("Own", "own") == [2, -4, 6]
    cell(3, names)
    assert run("Own", "own") == [3, -6, 9]
    assert registered() == [*before, names["own"]]


def test_the_same_function_may_be_registered_again() -> None:
    for builder in (times(2), partial(times(2))):
        for _ in range(2):
            operator("Own", domain=str(type(builder)))(builder)


@pytest.mark.parametrize("ranks", [(), (1,)])
def test_another_builder_is_an_error_unless_it_is_asked_for(ranks: tuple[int, ...]) -> None:
    operator("Own", domain="own", ranks=ranks)(times(2))
    with pytest.raises(CompileError) as caught:
        operator("Own", domain="own")(times(3))
    error = caught.value
    assert error.message == "a second builder of the operator own.Own, from version 1 on"
    assert error.hint == "with replace=True it takes the place of the first one"
    assert error.location.text.strip() == 'operator("Own", domain="own")(times(3))'
    ((_, first),) = error.notes
    assert (first.file, first.line) == (__file__, times.__code__.co_firstlineno + 1)
    assert run("Own", "own") == [2, -4, 6]
    operator("Own", domain="own", replace=True)(times(3))
    assert run("Own", "own") == [3, -6, 9]


def test_a_builder_that_is_no_function_has_no_place() -> None:
    operator("Own", domain="own")(partial(times(2)))
    with pytest.raises(CompileError, match="a second builder") as caught:
        operator("Own", domain="own")(times(3))
    assert caught.value.notes == ()


def test_functions_in_functions_are_not_the_same_by_their_names() -> None:
    operator("Own", domain="own")(times(2))
    with pytest.raises(CompileError, match="a second builder"):
        operator("Own", domain="own")(times(2))


def test_versions_are_registered_in_any_order() -> None:
    for version in (5, 1):
        operator("Own", since=version, domain="own")(times(version))
    assert run("Own", "own", 4) == [1, -2, 3]
    assert run("Own", "own", 5) == [5, -10, 15]
    operator("Own", domain="own", replace=True)(times(2))
    assert run("Own", "own", 4) == [2, -4, 6]
    assert run("Own", "own", 5) == [5, -10, 15]


@pytest.mark.parametrize(("since", "earlier"), [(1, [2, -4, 6]), (18, [1, 0, 3])])
def test_an_operator_of_taskc_is_replaced_where_it_is_asked_for(
    since: int, earlier: list[float]
) -> None:
    with pytest.raises(CompileError, match="taskc has an operator Relu") as caught:
        operator("Relu", since)(times(2))
    assert caught.value.hint == (
        f"with replace=True this builder takes its place, from version {since} on"
    )
    assert run("Relu") == [1, 0, 3]
    operator("Relu", since, replace=True)(times(2))
    assert run("Relu", version=20) == [2, -4, 6]
    assert run("Relu", version=17) == earlier
